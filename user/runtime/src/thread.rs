//! Threads (clone(2)): code with a stack of its own that may block in the kernel, and the locks between threads.
//!
//! Coroutines are the normal unit of execution of this system. Threads are for code that cannot be a coroutine, because
//! it blocks in the middle of a call or was written for threads; and to compare the two. A thread is no worker: it runs
//! its function and nothing else. It may spawn coroutines, wake them and send to their channels; it cannot await. A
//! synchronous call or a [`Mutex`] of this module blocks the thread and no worker.
//!
//! # Cost of a thread
//!
//! A block with its number, its caches of the heap and its thread-local values, and a stack above a guard page. Blocks
//! of threads that have ended are used again, and some of them keep their stack: starting a thread is then one call. A
//! block may be used again when the kernel has set the thread's number to 0, which is the last step of the thread's
//! end.
//!
//! # Locks
//!
//! [`Mutex`] and [`Condvar`] cost no call without contention. A coroutine that takes one blocks its whole worker while
//! it waits: between coroutines use [`crate::sync`].

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;

use unix::thread::{futex_wait, futex_wake};
use unix::{Errno, Result};

use crate::local;

/// Default bytes of a thread's stack; pages come at their first use. Code of the standard library is used to more.
pub const STACK: usize = if cfg!(all(on_cops, feature = "std")) { 2 << 20 } else { 256 * 1024 };
/// Bytes of the guard below a stack.
const GUARD: usize = 4096;

#[cfg(not(all(on_cops, feature = "std")))]
mod blocks;

/// Threads of the C library, in programs with the standard library.
#[cfg(all(on_cops, feature = "std"))]
mod of_library {
    use unix::{Errno, Result};

    use super::{Body, drop_values};
    use crate::local;

    /// Starts a thread.
    pub(super) fn start(stack: usize, body: Body) -> Result<()> {
        // `ENOMEM` is told as `EAGAIN`, as pthread_create(3) does.
        let started = std::thread::Builder::new().stack_size(stack).spawn(move || {
            // A panic ends the process, as in every thread of this module: nobody could wait for the result.
            let Ok(finished) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) else {
                crate::process::exit(crate::start::PANIC_STATUS)
            };
            drop_values(&local::current().values);
            finished.finish();
        });
        started.map(drop).map_err(|_| Errno::EAGAIN)
    }

    /// Drops the thread-local values at the end of a thread.
    struct DropAtEnd;

    impl Drop for DropAtEnd {
        fn drop(&mut self) {
            drop_values(&local::current().values);
        }
    }

    /// Has the calling thread's values dropped at its end.
    pub(super) fn drop_at_end() {
        std::thread_local!(static END: DropAtEnd = const { DropAtEnd });
        // It fails in a thread that is ending; the round of destructors that makes this value drops it.
        let _ = END.try_with(|_| ());
    }
}

#[cfg(not(all(on_cops, feature = "std")))]
use blocks::start;
#[cfg(all(on_cops, feature = "std"))]
use of_library::start;

/// A thread's function; it returns the packet to be marked done when everything of the thread but its stack is gone.
type Body = Box<dyn FnOnce() -> Arc<dyn Finish> + Send>;

/// Options for a new thread.
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    stack: usize,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder { stack: STACK }
    }
}

impl Builder {
    /// Options with a stack of [`STACK`] bytes.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Sets the size of the stack, rounded up to whole pages.
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack = bytes.max(2 * GUARD).next_multiple_of(GUARD);
        self
    }

    /// Starts a thread.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the process has reached its limit of threads, `ENOMEM`.
    #[doc(alias = "pthread_create")]
    pub fn spawn<F, T>(self, body: F) -> Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let packet = Arc::new(Packet { done: AtomicU32::new(0), value: UnsafeCell::new(None) });
        let theirs = packet.clone();
        let body: Body = Box::new(move || {
            let value = body();
            // SAFETY: only the thread uses it until `done` is set.
            unsafe { *theirs.value.get() = Some(value) };
            theirs
        });
        start(self.stack, body)?;
        Ok(JoinHandle { packet })
    }
}

/// Starts a thread with a stack of [`STACK`] bytes. Dropping the handle detaches it.
///
/// # Errors
///
/// `EAGAIN` if the process has reached its limit of threads, `ENOMEM`.
#[doc(alias("spawn_blocking", "pthread_create", "clone"))]
pub fn spawn<F, T>(body: F) -> Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().spawn(body)
}

/// Lets other threads, workers and processes of the same priority run.
pub fn yield_now() {
    unix::worker::yield_now();
}

/// Blocks the calling thread (a coroutine's whole worker) for a duration.
pub fn sleep(duration: Duration) {
    let word = AtomicU32::new(0);
    let _ = futex_wait(&word, 0, Some(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)));
}

/// The place in which a thread leaves its result.
struct Packet<T> {
    // Stored with release after the value: a caller that sees it (acquire) may take the value.
    done: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is the thread's until `done` is set, and the handle's afterwards.
unsafe impl<T: Send> Sync for Packet<T> {}

trait Finish: Send + Sync {
    fn finish(&self);
}

impl<T: Send> Finish for Packet<T> {
    fn finish(&self) {
        // Release: publishes the value.
        self.done.store(1, Ordering::Release);
        futex_wake(&self.done, u32::MAX);
    }
}

/// A handle to wait for a thread's end, and to take its result. Dropping it detaches the thread.
pub struct JoinHandle<T> {
    packet: Arc<Packet<T>>,
}

impl<T> JoinHandle<T> {
    /// Returns whether the thread's function has returned.
    pub fn is_finished(&self) -> bool {
        self.packet.done.load(Ordering::Acquire) != 0
    }

    /// Blocks until the thread's function has returned, and returns its result. (A panic in a thread ends the process.)
    ///
    /// # Panics
    ///
    /// Never: the result is there when the thread has ended.
    pub fn join(self) -> T {
        // Acquire: pairs with the release in `finish`.
        while self.packet.done.load(Ordering::Acquire) == 0 {
            let _ = futex_wait(&self.packet.done, 0, None);
        }
        // SAFETY: the thread is done with it, and there is one handle.
        unsafe { (*self.packet.value.get()).take() }.expect("a thread leaves its result before it says that it is done")
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}

// ---- locks ----

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may wait in the kernel.
const CONTENDED: u32 = 2;

/// Number of looks at a held lock before the call into the kernel: a holder on another hart is often done by then.
const SPINS: u32 = 40;

/// A mutual exclusion between threads: a waiter sleeps in the kernel. (U. Drepper, "Futexes are tricky", mutex 3.)
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// A locked [`Mutex`].
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// Makes it not `Send`: a coroutine would take it to another worker, which is harmless but unspecified.
    here: PhantomData<*const ()>,
}

impl<T> Mutex<T> {
    /// Creates a free mutex.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex; blocks while it is held.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // Acquire: the last holder's writes are visible.
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        MutexGuard { mutex: self, here: PhantomData }
    }

    /// Locks the mutex if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let exchanged = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        exchanged.ok().map(|_| MutexGuard { mutex: self, here: PhantomData })
    }

    #[cold]
    fn lock_contended(&self) {
        for _ in 0..SPINS {
            match self.state.load(Ordering::Relaxed) {
                FREE if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() => return,
                // Other threads wait already: it is their turn.
                CONTENDED => break,
                _ => core::hint::spin_loop(),
            }
        }
        // Further waiters are unknown here, so the lock is taken as contended, and the unlocking thread calls the
        // kernel.
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            let _ = futex_wait(&self.state, CONTENDED, None);
        }
    }

    #[inline]
    fn unlock(&self) {
        // Release: pairs with the acquire of the next holder.
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            futex_wake(&self.state, 1);
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: it is locked.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: it is locked.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Mutex").field("state", &self.state).finish_non_exhaustive()
    }
}

/// A condition of the data that a [`Mutex`] protects. Notifying costs no call while no thread waits.
#[derive(Debug, Default)]
pub struct Condvar {
    /// Changes with each notification while a thread may wait.
    turn: AtomicU32,
    /// Number of waiters. Changed and read under the mutex, or read after its release by the thread that changed the
    /// condition.
    waiters: AtomicU32,
}

impl Condvar {
    /// Creates a condition variable without waiters.
    pub const fn new() -> Condvar {
        Condvar { turn: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }

    /// Releases the lock, waits for a notification, and locks again. May also return without one (a spurious wake-up).
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_at_most(guard, None).0
    }

    /// [`Condvar::wait`] for a limited time; `true` if the time has passed.
    pub fn wait_timeout<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> (MutexGuard<'a, T>, bool) {
        self.wait_at_most(guard, Some(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn wait_at_most<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>, ns: Option<u64>) -> (MutexGuard<'a, T>, bool) {
        let mutex = guard.mutex;
        // Relaxed, both: the mutex orders them with the thread that changes the condition, and notifies after that.
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let turn = self.turn.load(Ordering::Relaxed);
        drop(guard);
        // A notification from here on has changed the word, so that this does not wait.
        let result = futex_wait(&self.turn, turn, ns);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        (mutex.lock(), result == Err(Errno::ETIMEDOUT))
    }

    /// Wakes one waiter. The condition must have been changed under the mutex, which may be released by now.
    #[inline]
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all waiters. The condition must have been changed under the mutex, which may be released by now.
    #[inline]
    pub fn notify_all(&self) {
        self.notify(u32::MAX);
    }

    #[inline]
    fn notify(&self, count: u32) {
        if self.waiters.load(Ordering::Relaxed) != 0 {
            // Relaxed: the kernel compares the word under a lock, and the mutex protects the condition.
            self.turn.fetch_add(1, Ordering::Relaxed);
            futex_wake(&self.turn, count);
        }
    }
}

// ---- thread-local storage ----

/// A thread-local value and its destructor.
struct Value {
    address: *mut u8,
    drop: unsafe fn(*mut u8),
}

/// The values of one thread or worker, by the number of their key.
#[derive(Default)]
pub(crate) struct Values(UnsafeCell<Vec<Option<Value>>>);

impl Values {
    pub(crate) const fn new() -> Values {
        Values(UnsafeCell::new(Vec::new()))
    }
}

/// Drops a thread's values, and up to four rounds of values that their destructors make.
fn drop_values(values: &Values) {
    for _ in 0..4 {
        // SAFETY: the values are the calling thread's, and no reference to the list is kept.
        let list = core::mem::take(unsafe { &mut *values.0.get() });
        if list.is_empty() {
            return;
        }
        for value in list.into_iter().flatten() {
            // SAFETY: it is dropped once, as the type that it was made of.
            unsafe { (value.drop)(value.address) };
        }
    }
}

/// A variable with one instance for each thread. The coroutines of one worker share an instance, and a coroutine may
/// change its worker: do not rely on it from one `await` to the next.
///
/// ```ignore
/// static COUNT: cops::thread::LocalKey<Cell<u32>> = LocalKey::new(|| Cell::new(0));
/// COUNT.with(|count| count.set(count.get() + 1));
/// ```
#[derive(Debug)]
pub struct LocalKey<T: 'static> {
    initial: fn() -> T,
    /// Number of the key plus one; 0 before its first use.
    number: AtomicUsize,
}

impl<T: 'static> LocalKey<T> {
    /// Creates a variable with its initial value in each thread.
    pub const fn new(initial: fn() -> T) -> LocalKey<T> {
        LocalKey { initial, number: AtomicUsize::new(0) }
    }

    fn number(&self) -> usize {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: a number names nothing but a place in each thread's own list.
        match self.number.load(Ordering::Relaxed) {
            0 => {
                let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                match self.number.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => fresh - 1,
                    Err(other) => other - 1,
                }
            }
            number => number - 1,
        }
    }

    /// Calls a function with the calling thread's instance.
    pub fn with<R>(&'static self, act: impl FnOnce(&T) -> R) -> R {
        let number = self.number();
        let values = &local::current().values;
        let find = || {
            // SAFETY: the list is the calling thread's, and the reference ends here.
            let list = unsafe { &*values.0.get() };
            list.get(number).and_then(Option::as_ref).map(|value| value.address)
        };
        let address = find().unwrap_or_else(|| {
            let fresh = Box::into_raw(Box::new((self.initial)())).cast::<u8>();
            // `initial` may have made the value already, if it uses this variable.
            if let Some(address) = find() {
                // SAFETY: it was just made, and no other code has its address.
                drop(unsafe { Box::from_raw(fresh.cast::<T>()) });
                return address;
            }
            // SAFETY: as above.
            let list = unsafe { &mut *values.0.get() };
            if list.len() <= number {
                list.resize_with(number + 1, || None);
            }
            #[cfg(all(on_cops, feature = "std"))]
            of_library::drop_at_end();
            list[number] = Some(Value {
                address: fresh,
                // SAFETY: `drop_values` passes the result of `Box::into_raw`, once.
                drop: |address| drop(unsafe { Box::from_raw(address.cast::<T>()) }),
            });
            fresh
        });
        // SAFETY: the value stays in its box until the thread ends, which is not within this call.
        act(unsafe { &*address.cast::<T>() })
    }
}
