//! The path from the process's first instruction to its first coroutine.
//!
//! `main` is not called but spawned, like every coroutine after it. The process ends when `main` ends, without waiting
//! for other coroutines.

use core::fmt::Display;

use abi_queue::Priority;

use crate::executor;
use crate::process::exit;

/// The types that `main` may return.
pub trait Termination {
    /// The exit status.
    fn report(self) -> i32;
}

impl Termination for () {
    fn report(self) -> i32 {
        0
    }
}

impl Termination for i32 {
    fn report(self) -> i32 {
        self
    }
}

impl<T: Termination, E: Display> Termination for Result<T, E> {
    /// Prints an error; the status is 1 then.
    fn report(self) -> i32 {
        match self {
            Ok(value) => value.report(),
            Err(error) => {
                unix::eprintln!("error: {error}");
                1
            }
        }
    }
}

/// Starts the process; called by the code that `#[cops::main]` adds.
#[doc(hidden)]
pub fn run<F>(workers: usize, priority: Priority, main: F) -> !
where
    F: Future<Output: Termination> + Send + 'static,
{
    if let Err(reason) = prepare() {
        unix::eprintln!("this program cannot run here: {reason}");
        exit(127);
    }
    let main = async move {
        core::future::poll_fn(|context| {
            executor::learn_own_waker(context.waker());
            core::task::Poll::Ready(())
        })
        .await;
        let status = main.await.report();
        crate::trace::flush();
        exit(status)
    };
    executor::spawn_named_at(priority, "main", main).detach();
    if workers > 1
        && let Err(error) = executor::alloc_cpu(workers - 1)
    {
        unix::eprintln!("only {} of {workers} workers: {error}", executor::workers());
    }
    executor::work(0)
}

/// Exit status of a process in which a coroutine panicked, as without the standard library.
#[cfg(all(on_cops, feature = "std"))]
pub(crate) const PANIC_STATUS: i32 = 101;

/// Has a panic that leaves a coroutine end the process, as it does without the standard library: the scheduler could
/// not go on. One that the coroutine catches is its own.
#[cfg(all(on_cops, feature = "std"))]
fn end_at_panics() {
    #[cfg(panic = "unwind")]
    coroutine::unwinding::handle_by(|| exit(PANIC_STATUS));
}

/// Finds the pages that the kernel has mapped, and makes the executor.
#[cfg(on_cops)]
fn prepare() -> Result<(), &'static str> {
    use abi_queue::{CompletionHeader, GlobalPage, ProcessPage};
    use abi_unix::types::auxiliary;
    use coroutine::Table;

    // First: the heap uses the worker's block.
    crate::local::enter_first();
    #[cfg(target_os = "none")]
    unix::panic::set_coroutines(&executor::FOR_PANICS);
    #[cfg(feature = "std")]
    end_at_panics();
    let address = |key| unix::start::auxiliary_value(key).filter(|address| *address != 0);
    let ring = address(auxiliary::COPS_COMPLETION_RING).ok_or("the kernel gave no completion ring")?;
    let global = address(auxiliary::COPS_GLOBAL_PAGE).ok_or("the kernel gave no global page")?;
    let page = address(auxiliary::COPS_PROCESS_PAGE).ok_or("the kernel gave no process page")?;
    let image = scheduler_image().ok_or("the kernel gave no scheduler")?;
    // SAFETY: the auxiliary vector holds the addresses at which the kernel mapped them for the life of the process.
    let (page, table) = unsafe {
        crate::call::set_ring(ring as *mut CompletionHeader);
        crate::time::set_global_page(global as *mut GlobalPage);
        (&*(page as *const ProcessPage), Table::from_image(image))
    };
    crate::trace::start();
    executor::initialise(table.map_err(|_| "the kernel's scheduler is not the one this program knows")?, page);
    executor::first_worker();
    Ok(())
}

/// Returns the scheduler's image as the kernel has mapped it, for executors beside the program's own; `None` where no
/// kernel of this system runs.
pub fn scheduler_image() -> Option<&'static [u8]> {
    #[cfg(on_cops)]
    {
        let image = unix::start::auxiliary_value(abi_unix::types::auxiliary::SYSINFO_EHDR)?;
        if image == 0 {
            return None;
        }
        // SAFETY: the auxiliary vector holds the address at which the kernel mapped it for the life of the process.
        Some(unsafe { core::slice::from_raw_parts(image as *const u8, image_length(image as *const u8)) })
    }
    #[cfg(not(on_cops))]
    None
}

/// Without a kernel there are no pages to find.
#[cfg(not(on_cops))]
fn prepare() -> Result<(), &'static str> {
    let _ = (executor::initialise, executor::first_worker);
    Err("this is not COPS")
}

/// Returns the bytes of the image that are in memory: to the end of its last loaded segment.
///
/// # Safety
///
/// `image` must point to an ELF image as the kernel maps it, of which at least the program headers are in memory.
#[cfg(on_cops)]
unsafe fn image_length(image: *const u8) -> usize {
    const PT_LOAD: u32 = 1;
    // SAFETY: the fields lie in the ELF header and in the program headers, which are in memory by the caller's promise.
    unsafe {
        let headers = image.add(32).cast::<u64>().read_unaligned() as usize;
        let size = image.add(54).cast::<u16>().read_unaligned() as usize;
        let count = image.add(56).cast::<u16>().read_unaligned() as usize;
        (0..count)
            .map(|index| image.add(headers + index * size))
            .filter(|header| header.cast::<u32>().read_unaligned() == PT_LOAD)
            .map(|header| {
                (header.add(16).cast::<u64>().read_unaligned() + header.add(40).cast::<u64>().read_unaligned()) as usize
            })
            .max()
            .unwrap_or(0)
    }
}
