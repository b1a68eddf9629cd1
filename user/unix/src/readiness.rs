//! Waiting for any of many descriptors: epoll, and event counters to wake such a wait.

pub use abi_unix::types::epoll as event;
pub use abi_unix::types::epoll::Event;

use core::ffi::CStr;

use abi_unix::types::open;

use crate::{Descriptor, Result, call};

/// An epoll instance, closed when it is dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Epoll(Descriptor);

impl Epoll {
    /// Creates an instance without descriptors.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENOMEM`.
    pub fn new() -> Result<Epoll> {
        // SAFETY: the call has no pointers.
        unsafe { call!(EpollCreate, open::CLOEXEC) }.map(|number| Epoll(Descriptor::from_result(number)))
    }

    /// Returns the descriptor of the instance.
    pub fn descriptor(&self) -> &Descriptor {
        &self.0
    }

    fn control(&self, operation: u32, descriptor: i32, event: Event) -> Result<()> {
        // SAFETY: the event lives through the call.
        unsafe { call!(EpollControl, self.0.raw(), operation, descriptor, &raw const event) }.map(drop)
    }

    /// Watches a descriptor for events ([`event`]); `data` comes with them.
    ///
    /// # Errors
    ///
    /// `EEXIST` if it is watched, `EPERM` if it cannot be, `ELOOP` for another epoll instance, `ENOMEM`.
    #[doc(alias = "epoll_ctl")]
    pub fn add(&self, descriptor: i32, events: u32, data: u64) -> Result<()> {
        self.control(event::CTL_ADD, descriptor, Event { events, data })
    }

    /// Changes the watched events of a descriptor.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it is not watched.
    pub fn change(&self, descriptor: i32, events: u32, data: u64) -> Result<()> {
        self.control(event::CTL_MOD, descriptor, Event { events, data })
    }

    /// Stops watching a descriptor.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it was not watched.
    pub fn remove(&self, descriptor: i32) -> Result<()> {
        self.control(event::CTL_DEL, descriptor, Event::default())
    }

    /// Waits for events, for at most `timeout_ms` milliseconds if that is not negative, and returns their number. The
    /// calling worker or thread waits.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no room for an event.
    #[doc(alias = "epoll_wait")]
    pub fn wait(&self, events: &mut [Event], timeout_ms: i32) -> Result<usize> {
        // SAFETY: the kernel writes at most that many events to exclusively borrowed memory.
        unsafe { call!(EpollWait, self.0.raw(), events.as_mut_ptr(), events.len(), timeout_ms, 0, 8) }
    }
}

/// Creates an event counter (eventfd(2)); the flags are `EFD_SEMAPHORE` and some of those of `open`.
///
/// # Errors
///
/// `EINVAL` for other flags, `EMFILE`, `ENOMEM`.
#[doc(alias = "eventfd")]
pub fn event_counter(value: u32, flags: u32) -> Result<Descriptor> {
    // SAFETY: the call has no pointers.
    unsafe { call!(EventCounter, value, flags) }.map(Descriptor::from_result)
}

/// Creates a queue for events of watched files (inotify(7)), which are read from it; the flags are some of those of
/// `open`.
///
/// # Errors
///
/// `EINVAL` for other flags, `EMFILE`, `ENOMEM`.
#[doc(alias = "inotify_init")]
pub fn event_file(flags: u32) -> Result<Descriptor> {
    // SAFETY: the call has no pointers.
    unsafe { call!(EventFile, flags) }.map(Descriptor::from_result)
}

/// Has a queue told of the events in `mask` of a file; returns the number of the watch.
///
/// # Errors
///
/// `EINVAL`, `ENOENT`, `ENOSPC`, `EOPNOTSUPP`.
#[doc(alias = "inotify_add_watch")]
pub fn watch_file(queue: i32, path: &CStr, mask: u32) -> Result<i32> {
    // SAFETY: the kernel reads a string that ends.
    unsafe { call!(WatchFile, queue, path.as_ptr(), mask) }.map(|number| number as i32)
}

/// Ends a watch.
///
/// # Errors
///
/// `EINVAL`.
#[doc(alias = "inotify_rm_watch")]
pub fn end_watch(queue: i32, watch: i32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(EndWatch, queue, watch) }.map(drop)
}
