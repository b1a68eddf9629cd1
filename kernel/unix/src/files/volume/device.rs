//! The disk of a volume as the library sees it: requests that wait, on the stack of the volume.

use core::cell::Cell;
use core::future::poll_fn;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};

use abi_queue::pages::PAGE_SIZE;
use abi_unix::{Errno, SystemCall};
use alloc::sync::Arc;
use ext4::{Device, DeviceFailed};

use crate::files::disk::{Disk, Synchronisation};
use crate::files::volume::{Desk, MountedVolume, WRITTEN_AT_A_TIME};

/// Bytes that a volume takes with its caches, beside the uses of its files.
pub(super) const MEMORY: usize =
    (2 << 20) + ext4::MEMORY_OF_JOURNAL + WRITTEN_AT_A_TIME * PAGE_SIZE + kernel_thread::DEEP_STACK_SIZE;

/// A stack on which functions wait.
pub(super) trait WaitsOnStack {
    /// WaitsOnStack until `poll` is ready; it registers the waker before it answers `Pending`.
    fn wait<T>(&self, poll: impl FnMut(&Waker) -> Poll<T>) -> T;
}

/// The blocks of a volume.
pub(super) struct Blocks<'a, W> {
    disk: &'static Disk,
    /// Number of the disk's failures to write that a flush has told of, or that were before the volume was written.
    told: &'a AtomicU64,
    waits: &'a W,
}

impl<W> Clone for Blocks<'_, W> {
    fn clone(&self) -> Self {
        Blocks { ..*self }
    }
}

impl<'a, W: WaitsOnStack> Blocks<'a, W> {
    pub(super) fn new(volume: &'a MountedVolume, disk: &'static Disk, waits: &'a W) -> Blocks<'a, W> {
        Blocks { disk, told: &volume.told_write_errors, waits }
    }
}

fn failed(_: Errno) -> DeviceFailed {
    DeviceFailed
}

impl<W: WaitsOnStack> Device for Blocks<'_, W> {
    fn bytes(&self) -> u64 {
        self.disk.bytes()
    }

    fn is_read_only(&self) -> bool {
        self.disk.is_read_only()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceFailed> {
        let done = Cell::new(0);
        self.waits.wait(|waker| self.disk.poll_read_bytes(offset, bytes, &done, waker)).map_err(failed)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFailed> {
        let done = Cell::new(0);
        self.waits.wait(|waker| self.disk.poll_write_bytes(offset, bytes, &done, waker)).map_err(failed)
    }

    fn flush(&self) -> Result<(), DeviceFailed> {
        let mut wait = Synchronisation::new(SystemCall::SynchroniseFile, Some(self.disk));
        let flushed = self.waits.wait(|waker| wait.poll(Some(waker)));
        // Those since the last flush, also of pages that the disk has written by itself, and of others' pages: a page
        // may have bytes of both.
        let errors = self.disk.write_errors();
        let is_whole = self.told.swap(errors, Ordering::Relaxed) == errors;
        flushed.map_err(failed)?;
        if is_whole { Ok(()) } else { Err(DeviceFailed) }
    }

    fn pause(&self) {
        pause(self.waits);
    }
}

/// Lets others go on.
pub(super) fn pause(waits: &impl WaitsOnStack) {
    let mut is_over = false;
    waits.wait(|waker| {
        if core::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        waker.wake_by_ref();
        Poll::Pending
    });
}

/// Does all that a volume is asked, on this stack, up to its end.
#[cfg(any(target_os = "none", test))]
fn serve_all<W: WaitsOnStack>(volume: &Arc<MountedVolume>, waits: &W) {
    let mut desk = Desk::new(volume, waits);
    loop {
        let state = desk.state();
        let Some(job) = waits.wait(|waker| volume.next(state, waker)) else { break };
        volume.serve(&mut desk, job);
    }
    volume.finish(&mut desk);
}

/// Starts the coroutine of a volume. `ENOMEM` if there is no stack.
#[cfg(target_os = "none")]
pub(super) fn start(volume: &Arc<MountedVolume>) -> Result<(), Errno> {
    use kernel_thread::{Current, Stack, Thread};

    struct OwnStack<'a>(&'a Current<'a>);

    // A thread runs on one hart at a time, and so does everything on its stack.
    impl WaitsOnStack for OwnStack<'_> {
        fn wait<T>(&self, mut poll: impl FnMut(&Waker) -> Poll<T>) -> T {
            self.0.block_on(poll_fn(|cx| poll(cx.waker())))
        }
    }

    let stack = Stack::new_deep().map_err(|_| Errno::ENOMEM)?;
    let own = volume.clone();
    let mut thread = Thread::new(stack, move |current: &Current<'_>| serve_all(&own, &OwnStack(current)));
    let own = volume.clone();
    super::spawn(async move { poll_fn(|cx| own.poll_charged(Pin::new(&mut thread), cx)).await });
    Ok(())
}

/// Starts the coroutine of a volume. The developer's computer has no such stacks: there a request to the disk is
/// awaited in place, and a folder of the host has a thread.
#[cfg(not(target_os = "none"))]
pub(super) fn start(volume: &Arc<MountedVolume>) -> Result<(), Errno> {
    #[cfg(test)]
    if volume.source.disk().is_none() {
        on_thread::start(volume);
        return Ok(());
    }

    struct InPlace(Option<&'static Disk>);

    impl WaitsOnStack for InPlace {
        fn wait<T>(&self, mut poll: impl FnMut(&Waker) -> Poll<T>) -> T {
            loop {
                if let Poll::Ready(value) = poll(Waker::noop()) {
                    return value;
                }
                if let Some(disk) = self.0 {
                    disk.look_now();
                }
            }
        }
    }

    let own = volume.clone();
    let mut work = alloc::boxed::Box::pin(async move {
        let in_place = InPlace(own.source.disk());
        let mut desk = Desk::new(&own, &in_place);
        loop {
            let state = desk.state();
            let Some(job) = poll_fn(|cx| own.next(state, cx.waker())).await else { break };
            own.serve(&mut desk, job);
        }
        own.finish(&mut desk);
    });
    let own = volume.clone();
    super::spawn(async move { poll_fn(|cx| own.poll_charged(Pin::new(&mut work), cx)).await });
    Ok(())
}

/// The stack of a volume in tests: a thread, which goes on while the volume's coroutine is polled.
#[cfg(test)]
mod on_thread {
    use std::cell::RefCell;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    struct OnThread {
        polled: Receiver<Waker>,
        pending: Sender<()>,
        waker: RefCell<Waker>,
    }

    impl OnThread {
        fn await_poll(&self) {
            match self.polled.recv() {
                Ok(waker) => *self.waker.borrow_mut() = waker,
                // The coroutine was dropped, and this stack with it.
                Err(_) => loop {
                    std::thread::park();
                },
            }
        }
    }

    impl WaitsOnStack for OnThread {
        fn wait<T>(&self, mut poll: impl FnMut(&Waker) -> Poll<T>) -> T {
            loop {
                let waker = self.waker.borrow().clone();
                if let Poll::Ready(value) = poll(&waker) {
                    return value;
                }
                let _ = self.pending.send(());
                self.await_poll();
            }
        }
    }

    pub(super) fn start(volume: &Arc<MountedVolume>) {
        let ((poll, polled), (pending, is_pending)) = (channel(), channel());
        let own = volume.clone();
        std::thread::spawn(move || {
            let _hart = crate::testing::simulation().attach(0);
            let waits = OnThread { polled, pending, waker: RefCell::new(Waker::noop().clone()) };
            waits.await_poll();
            serve_all(&own, &waits);
        });
        let own = volume.clone();
        let mut work = poll_fn(move |cx| {
            let _ = poll.send(cx.waker().clone());
            match is_pending.recv() {
                Ok(()) => Poll::Pending,
                Err(_) => Poll::Ready(()),
            }
        });
        super::super::spawn(async move { poll_fn(|cx| own.poll_charged(Pin::new(&mut work), cx)).await });
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;
    use crate::files::disk::tests::SECOND_FAILS;
    use crate::files::volume::tests::{mount, open, unmount, with_volume};

    #[test]
    fn a_disk_that_fails_fails_calls_and_nothing_else() {
        with_volume(|program| {
            SECOND_FAILS.store(true, Ordering::Relaxed);
            assert_eq!(mount(program, 0), Err(Errno::EIO));
            SECOND_FAILS.store(false, Ordering::Relaxed);
            // The attempt has left nothing behind.
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", abi_unix::types::open::CREAT | abi_unix::types::open::RDWR).unwrap();
            assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }
}
