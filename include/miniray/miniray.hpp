// MiniRay runs functions in other processes and exchanges plain messages with them. This header includes the others,
// except doctor.hpp (a check before training) and std_future.hpp, which needs <future>. Read them in this order:
//
// 1. Start a worker, talk to it, stop it:   worker.hpp, handle.hpp
// 2. What a message may hold:               value.hpp, array.hpp, convert.hpp, fields.hpp
// 3. The exceptions that calls throw:       error.hpp
// 4. Workers on other machines:             remote_worker.hpp, worker_server.hpp, cluster.hpp, launch.hpp
// 5. Workers that combine their arrays:     group.hpp; on several machines training_group.hpp, nccl.hpp, hardware.hpp
// 6. Calling functions of a worker:         calls.hpp, typed_function.hpp, registry.hpp
// 7. Sharing out tasks among workers:       pool.hpp, task_options.hpp
//    and what can be done with futures:     future.hpp, continuation.hpp, coroutine.hpp, std_future.hpp
// 8. Restarting workers that died:          supervised_worker.hpp, group_run.hpp, restart_policy.hpp, event_log.hpp
// 9. Finer control:                         channel.hpp, message.hpp, seconds.hpp, limits.hpp, log.hpp
#pragma once

#include "miniray/array.hpp"
#include "miniray/calls.hpp"
#include "miniray/channel.hpp"
#include "miniray/cluster.hpp"
#include "miniray/continuation.hpp"
#include "miniray/convert.hpp"
#include "miniray/coroutine.hpp"
#include "miniray/error.hpp"
#include "miniray/event_log.hpp"
#include "miniray/fields.hpp"
#include "miniray/future.hpp"
#include "miniray/group.hpp"
#include "miniray/group_run.hpp"
#include "miniray/handle.hpp"
#include "miniray/hardware.hpp"
#include "miniray/launch.hpp"
#include "miniray/limits.hpp"
#include "miniray/log.hpp"
#include "miniray/message.hpp"
#include "miniray/nccl.hpp"
#include "miniray/pool.hpp"
#include "miniray/registry.hpp"
#include "miniray/remote_worker.hpp"
#include "miniray/restart_policy.hpp"
#include "miniray/seconds.hpp"
#include "miniray/supervised_worker.hpp"
#include "miniray/task_options.hpp"
#include "miniray/training_group.hpp"
#include "miniray/typed_function.hpp"
#include "miniray/value.hpp"
#include "miniray/version.hpp"
#include "miniray/worker.hpp"
#include "miniray/worker_server.hpp"
