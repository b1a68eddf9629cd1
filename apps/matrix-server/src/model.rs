//! The models of the server: coroutines (c) or threads (t), in the kernel (k) and in the program (u).
//!
//! All have the same three stages for each connection, joined by queues of equal length:
//!
//! | model | kernel side | program's side |
//! |---|---|---|
//! | `kcuc` | coroutines | three coroutines |
//! | `kcut` | coroutines | three threads |
//! | `ktut` | a kernel thread for each thread | three threads |
//! | `ktut-wait` | a kernel thread for each thread | three threads |
//! | `ktuc` | one polling kernel thread | three coroutines |
//! | `ktuc-epoll` | a kernel thread for the worker | three coroutines |
//!
//! The calls for a request that finds all stages waiting, and their path:
//!
//! * `kcuc`: `read` and `write`; a `read` that must wait is a kernel coroutine, whose completion wakes the stage.
//! * `kcut`: `read`, `write`, and for each of the two queues a `futex` that wakes and one that waits; the thread's
//!   switching coroutine waits.
//! * `ktut`: the calls of `kcut`; a `read` that must wait is tried again at each turn of the kernel thread.
//! * `ktut-wait`: the calls of `kcut`; the kernel thread sleeps in the socket's queue.
//! * `ktuc`: `read` and `write`; a `read` that must wait goes to the kernel thread, which tries all connections' in
//!   turn.
//! * `ktuc-epoll`: `read`, `write`, a `read` that finds no bytes, and a share of one `epoll_pwait` for all ready
//!   connections; each connection is registered once, edge-triggered.

use cops::system::kernel_side::KernelSide;
use matrix::Model;

/// Returns the kernel's side of a model's calls.
pub fn kernel_side(model: Model) -> KernelSide {
    match model {
        Model::Kcuc | Model::Kcut => KernelSide::Coroutines,
        Model::KtutWait | Model::KtucEpoll => KernelSide::WaitingThreads,
        Model::Ktut => KernelSide::RetryingThreads,
        Model::Ktuc => KernelSide::PollingThread,
    }
}
