"""RLHF-style training on several machines: a small transformer learns to sort digits by PPO, from rewards alone.

    python examples/rlhf_ppo.py [node1 node2 ...] [--actors 1] [--critics 1] [--rollouts 1] [--steps 60]
                                [--curve rlhf_reward.svg]

                    weights              responses             rewards, advantages
    actor, rank 0 ───────────> rollouts ───────────> coordinator ───────────> actor group, critic group

Actors and critics are torch.distributed groups over all nodes (NCCL on GPUs, Gloo elsewhere); the numbers are per node.
A node is a host name that ssh knows; without nodes, the script starts two servers on this machine. Nodes need Python,
torch and MiniRay; MiniRay copies this script. Unlike real RLHF, which uses a reward model, this script computes the
reward. The policy starts untrained, so there is no reference model; an entropy bonus keeps the policy exploring.
"""

import argparse
import os
from pathlib import Path
from statistics import mean

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch needs no threads: the workers run in parallel

import torch
import torch.distributed as dist
from torch import nn

from miniray import Cluster, NCCLConfig, NodeConfig, setup_nccl_env

DIGITS = 10  # the vocabulary; one more token ends the prompt
LENGTH = 4  # digits in a prompt, and in its response
BATCH = 512  # prompts in a step, over all nodes
EPOCHS = 4  # updates in a step
LEARNING_RATE = 2e-3
CLIP = 0.2  # how far the probability of a token may move from the one that it was generated with
ENTROPY_BONUS = 0.01
LAMBDA = 0.95  # for generalised advantage estimation; there is no discount


class TinyTransformer(nn.Module):
    """One causal layer. The actor has one output for each digit; the critic has one output, the expected reward."""

    def __init__(self, outputs, width=64):
        super().__init__()
        self.tokens = nn.Embedding(DIGITS + 1, width)
        self.positions = nn.Parameter(0.5 * torch.randn(2 * LENGTH, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs))

    def forward(self, prompts, responses):
        """Return the outputs for each token of the response, computed from the tokens before it."""
        end_of_prompt = prompts.new_full((len(prompts), 1), DIGITS)
        tokens = torch.cat([prompts, end_of_prompt, responses], dim=1)
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.layer(self.tokens(tokens) + self.positions[:length], mask, is_causal=True)
        return self.head(hidden)[:, LENGTH:]


# 1. Define the losses, the rollout and the reward
def actor_loss(policy, batch):
    """The PPO loss. It raises the probability of good tokens, and limits the distance from the old policy."""
    log_probs = policy(batch["prompts"], batch["responses"][:, :-1]).log_softmax(dim=-1)
    chosen = log_probs.gather(2, batch["responses"].unsqueeze(2)).squeeze(2)
    ratio = (chosen - batch["log_probs"]).exp()
    gain = torch.min(ratio * batch["advantages"], ratio.clamp(1 - CLIP, 1 + CLIP) * batch["advantages"])
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
    return -(gain + ENTROPY_BONUS * entropy).mean()


def critic_loss(critic, batch):
    values = critic(batch["prompts"], batch["responses"][:, :-1]).squeeze(2)
    return (values - batch["returns"]).square().mean()


@torch.no_grad()
def generate(policy, prompts):
    """Generate a response to each prompt, token by token, and the probability of each token."""
    responses, log_probs = prompts[:, :0], []
    for _ in range(LENGTH):
        choices = policy(prompts, responses)[:, -1].log_softmax(dim=-1)
        token = choices.exp().multinomial(1)
        log_probs.append(choices.gather(1, token))
        responses = torch.cat([responses, token], dim=1)
    return responses, torch.cat(log_probs, dim=1)


def reward_of(prompt, response):
    """The share of digits that are in their sorted position. It is computed, so no reward model is needed."""
    return sum(given == wanted for given, wanted in zip(response, sorted(prompt), strict=True)) / LENGTH


def advantages_of(rewards, values):
    """How much better than the critic expected each token was. The reward comes with the last token."""
    advantages = torch.cat([values[:, 1:], rewards.unsqueeze(1)], dim=1) - values
    for i in reversed(range(LENGTH - 1)):
        advantages[:, i] += LAMBDA * advantages[:, i + 1]
    return advantages


# 2. Define work functions
def actor_work_fn(handle):
    train(handle, actor_loss, outputs=DIGITS)


def critic_work_fn(handle):
    train(handle, critic_loss, outputs=1)


def train(handle, loss_fn, outputs):
    """One rank of a training group."""
    # Receive the group's config from the coordinator
    setup_nccl_env(NCCLConfig(**handle.recv()))

    # Initialize torch.distributed. DDP copies the weights of rank 0 to every rank, and averages the gradients.
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group(backend="nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(TinyTransformer(outputs).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    # Message loop
    handle.send({"status": "ready"})
    while True:
        msg = handle.recv()
        batch = {name: tensor.to(device) for name, tensor in msg.get("batch", {}).items()}

        if msg["cmd"] == "forward":
            with torch.no_grad():
                handle.send({"outputs": model(batch["prompts"], batch["responses"][:, :-1]).cpu()})

        elif msg["cmd"] == "forward_backward":
            optimizer.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()
            handle.send({"loss": loss.item()})

        elif msg["cmd"] == "optim_step":
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            handle.send({"gradient_norm": norm.item()})

        elif msg["cmd"] == "weights":
            handle.send({"weights": {name: tensor.cpu() for name, tensor in model.module.state_dict().items()}})

        elif msg["cmd"] == "shutdown":
            break
    dist.destroy_process_group()


def rollout_work_fn(handle):
    """Generate responses with the weights that were sent last."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = TinyTransformer(outputs=DIGITS).to(device)
    while True:
        msg = handle.recv()

        if msg["cmd"] == "weights":
            policy.load_state_dict(msg["weights"])

        elif msg["cmd"] == "generate":
            torch.manual_seed(msg["seed"])
            responses, log_probs = generate(policy, msg["prompts"].to(device))
            handle.send({"responses": responses.cpu(), "log_probs": log_probs.cpu()})

        elif msg["cmd"] == "shutdown":
            break


# 3. Define how a batch is split into one piece for each worker, and joined again
def shards(batch, count):
    pieces = {name: tensor.tensor_split(count) for name, tensor in batch.items()}
    return [{name: pieces[name][i] for name in batch} for i in range(count)]


def joined(answers):
    return {name: torch.cat([answer[name] for answer in answers]) for name in answers[0]}


def save_curve(path, rewards):
    """Write an SVG picture of the rewards, again after every step."""
    points = " ".join(f"{40 + 600 * i / len(rewards):.1f},{340 - 300 * rewards[i]:.1f}" for i in range(len(rewards)))
    scale = "".join(
        f'<path d="M 40 {y} H 640" stroke="lightgray"/><text x="12" y="{y + 4}">{(340 - y) / 300:.1f}</text>\n'
        for y in range(40, 341, 60)
    )
    Path(path).write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="660" height="360" font-family="sans-serif" font-size="12">\n'
        f'<rect width="660" height="360" fill="white"/>\n{scale}'
        f'<polyline points="{points}" fill="none" stroke="steelblue" stroke-width="2"/>\n'
        f'<text x="40" y="24">reward, steps 1 to {len(rewards)}</text>\n</svg>\n'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="*")
    for name in ("--actors", "--critics", "--rollouts"):
        parser.add_argument(name, type=int, default=1, help="workers on each node")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--curve", default="rlhf_reward.svg", help="file for the picture of the rewards")
    options = parser.parse_args()
    torch.manual_seed(0)

    # 4. Launch the cluster (ssh, then TCP). Worker i of a node gets GPU i, if the node has GPUs. Two servers on this
    # machine use none, because NCCL refuses two ranks on one GPU.
    nodes = [NodeConfig(host, base_port=0, gpus_per_worker=1) for host in options.nodes]
    stand_ins = [NodeConfig("localhost", base_port=0, env={"CUDA_VISIBLE_DEVICES": ""})] * 2
    with Cluster(nodes or stand_ins) as cluster:
        actors = cluster.training_group(cluster.start(actor_work_fn, num_workers=options.actors))
        critics = cluster.training_group(cluster.start(critic_work_fn, num_workers=options.critics))
        rollouts = cluster.start(rollout_work_fn, num_workers=options.rollouts)

        curve = []
        for step in range(1, options.steps + 1):
            # 5. Send the newest weights to the rollout workers, and receive responses
            actors[0].send({"cmd": "weights"})
            cluster.broadcast({"cmd": "weights", "weights": actors[0].recv()["weights"]}, rollouts)
            prompts = torch.randint(DIGITS, (BATCH, LENGTH))
            for i, (worker, shard) in enumerate(zip(rollouts, prompts.tensor_split(len(rollouts)), strict=True)):
                worker.send({"cmd": "generate", "prompts": shard, "seed": step * len(rollouts) + i})
            batch = {"prompts": prompts, **joined(cluster.gather(rollouts))}

            # 6. Compute the rewards, and ask the critic for the rewards that it expected
            rewards = torch.tensor(list(map(reward_of, prompts.tolist(), batch["responses"].tolist())))
            critics.scatter([{"cmd": "forward", "batch": shard} for shard in shards(batch, len(critics))])
            values = joined(critics.gather())["outputs"].squeeze(2)
            advantages = advantages_of(rewards, values)
            batch["returns"] = advantages + values
            batch["advantages"] = (advantages - advantages.mean()) / (advantages.std() + 1e-6)

            # 7. Train actor and critic at the same time, each rank on its shard
            for _ in range(EPOCHS):
                for group in (actors, critics):
                    group.scatter([{"cmd": "forward_backward", "batch": shard} for shard in shards(batch, len(group))])
                actor_losses = [answer["loss"] for answer in actors.gather()]
                critic_losses = [answer["loss"] for answer in critics.gather()]
                cluster.broadcast({"cmd": "optim_step"}, [*actors, *critics])
                actors.gather()
                critics.gather()

            curve.append(rewards.mean().item())
            save_curve(options.curve, curve)
            print(
                f"step {step:3}: reward {curve[-1]:.3f}, sorted {(rewards == 1.0).float().mean():4.0%}, "
                f"actor loss {mean(actor_losses):6.3f}, critic loss {mean(critic_losses):.3f}",
                flush=True,
            )

        # 8. Cleanup
        cluster.broadcast({"cmd": "shutdown"})

    print(f"The reward went from {curve[0]:.3f} to {curve[-1]:.3f}; {options.curve} shows how")


if __name__ == "__main__":
    main()
