"""Parts of the seeds' programs that stand in several of them, word for word."""

MATRIX_WORKER = """
# 1. Define work function
def matrix_worker(handle):
    \"\"\"Worker that multiplies matrices.\"\"\"
    while True:
        msg = handle.recv()

        if msg["cmd"] == "multiply":
            A = np.array(msg["A"])
            B = np.array(msg["B"])
            result = np.matmul(A, B)
            handle.send({"result": result.tolist()})

        elif msg["cmd"] == "shutdown":
            break
"""

SEND_AND_COLLECT = """
results = []
for i, (A, B) in enumerate(matrices):
    worker = workers[i % len(workers)]
    worker.send({
        "cmd": "multiply",
        "A": A.tolist(),
        "B": B.tolist(),
    })

# 5. Collect results
for i in range(len(matrices)):
    worker = workers[i % len(workers)]
    result = worker.recv()
    results.append(result["result"])

print(f"Computed {len(results)} matrix products")

# 6. Cleanup
for worker in workers:
    worker.send({"cmd": "shutdown"})
"""

FSDP_BACKEND = """
        from rollouts.training.backends.fsdp import FSDPTrainingBackend

        backend = FSDPTrainingBackend(
            model=model,
            optimizer=optimizer,
            loss_fn=loss_fn,
            checkpoint_dir=Path("checkpoints"),
        )
"""
