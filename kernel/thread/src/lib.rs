//! Kernel threads: kernel code with a stack of its own, which can wait inside a function.
//!
//! COPS's kernel needs none: its waiting calls are coroutines. To compare the two, a process can request that its calls
//! are carried by kernel threads (`models` in the Unix kernel). A [`Thread`] is a future, so that the kernel's
//! executor orders threads and coroutines by the same measure and there is no other difference between them: polling it
//! switches to its stack, and it is pending when it switches back. Inside, [`Current`] waits for futures
//! ([`Current::block_on`]) and lets others run.
//!
//! # Memory
//!
//! A stack is 32 KiB, mapped in a window of the machine's above a guard region of the same size; a deep one takes four
//! such slots and the guard regions in between, for code that was not written for a kernel, and stays mapped. Others
//! are mapped and unmapped several at a time, because each time all harts must flush; those of threads that have ended
//! are used again, and up to [`KEPT`] of them are kept. Frames for them are taken only while programs could have them
//! too.
//!
//! # Access to a thread
//!
//! A thread's `Control` is used by two sides that never run at once: the poller of the thread, and the thread. A thread
//! that was started must be polled to its end; if it is dropped before, its stack and the objects on it are leaked,
//! because they cannot be found.
//!
//! A thread must not wait while it holds a spin lock, nor keep values read from its hart's state over a wait.
#![cfg_attr(target_os = "none", no_std)]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;

use alloc::boxed::Box;
use core::cell::{Cell, UnsafeCell};
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};

pub use stack::{DEEP_STACK_SIZE, KEPT, OutOfStacks, STACK_SIZE, Stack};

type Body = Box<dyn FnOnce(&Current<'_>) + Send>;

/// State shared by a thread and its poller.
struct Control {
    /// Saved stack pointer of the thread.
    own: Cell<usize>,
    /// Saved stack pointer of the poller.
    poller: Cell<usize>,
    body: Cell<Option<Body>>,
    finished: Cell<bool>,
    /// Waker of the thread's coroutine.
    waker: UnsafeCell<Waker>,
}

/// A kernel thread, as a future that is ready when its function has returned.
#[doc(alias = "kthread")]
pub struct Thread {
    control: Box<Control>,
    stack: Option<Stack>,
    started: bool,
}

// SAFETY: the function may be sent, and the objects on its stack go from hart to hart with it, as with any thread; the
// two sides never run at once, and the executor that moves the future to another hart orders them.
unsafe impl Send for Thread {}

impl Thread {
    /// Makes a thread that will call `body` on this stack when it is polled for the first time.
    pub fn new(stack: Stack, body: impl FnOnce(&Current<'_>) + Send + 'static) -> Thread {
        let control = Control {
            own: Cell::new(0),
            poller: Cell::new(0),
            body: Cell::new(Some(Box::new(body))),
            finished: Cell::new(false),
            waker: UnsafeCell::new(Waker::noop().clone()),
        };
        Thread { control: Box::new(control), stack: Some(stack), started: false }
    }
}

impl Future for Thread {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let control = &*this.control;
        {
            // SAFETY: the thread does not run, and keeps no reference to it.
            let waker = unsafe { &mut *control.waker.get() };
            waker.clone_from(context.waker());
        }
        let Some(stack) = &this.stack else { return Poll::Ready(()) };
        if !this.started {
            this.started = true;
            control.own.set(stack.prepare(enter, core::ptr::from_ref(control).addr()));
        }
        // SAFETY: the thread's own place was left there by `prepare` or by its last switch; it is used once, because
        // each switch back leaves a new one.
        unsafe { stack::switch(control.poller.as_ptr(), control.own.get()) };
        if control.finished.get() {
            // The thread has left its stack, and will not return to it.
            this.stack = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.started
            && let Some(stack) = self.stack.take()
        {
            let _ = core::mem::ManuallyDrop::new(stack);
        }
    }
}

/// Runs a thread's function on its own stack, and never returns.
extern "C" fn enter(control: usize) -> ! {
    // SAFETY: `poll` passed the address of the thread's control block, which lives until the thread has finished.
    let control = unsafe { &*(control as *const Control) };
    if let Some(body) = control.body.take() {
        body(&Current { control });
    }
    control.finished.set(true);
    loop {
        Current { control }.suspend();
    }
}

/// The running thread, for its function.
pub struct Current<'a> {
    control: &'a Control,
}

impl Current<'_> {
    /// Switches back to the poller; returns when the thread is polled again.
    pub fn suspend(&self) {
        // SAFETY: the poller has left its place there just now, before it switched here.
        unsafe { stack::switch(self.control.own.as_ptr(), self.control.poller.get()) };
    }

    /// Returns the waker that makes the thread go on.
    pub fn waker(&self) -> Waker {
        // SAFETY: it changes only while the thread does not run.
        unsafe { (*self.control.waker.get()).clone() }
    }

    /// Waits for a future, blocking the thread.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            let waker = self.waker();
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            self.suspend();
        }
    }

    /// Lets others of the same priority run.
    #[doc(alias = "schedule")]
    #[doc(alias = "cond_resched")]
    pub fn yield_now(&self) {
        self.waker().wake();
        self.suspend();
    }
}

#[cfg(target_os = "none")]
mod stack {
    use alloc::vec::Vec;

    use hal_api::{Flush, HartSet, MAXIMUM_HARTS, Machine as _, Scope};
    use memory::Block;
    use platform::Machine;
    use platform::machine::{
        THREAD_STACK_SIZE, THREAD_STACKS, prepare_stack, set_thread_stack, set_thread_stack_joined, switch_stack,
        thread_stack_top,
    };
    use spin::Mutex;

    const PAGE: usize = memory::PAGE_SIZE as usize;
    const FRAMES: usize = THREAD_STACK_SIZE / PAGE;
    /// Bytes of a stack.
    pub const STACK_SIZE: usize = THREAD_STACK_SIZE;
    /// Stacks that are mapped or unmapped at once.
    const BATCH: usize = 16;
    /// Stacks that are kept for threads to come.
    pub const KEPT: usize = 2 * BATCH;

    /// There is no memory for another stack, or there are too many.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OutOfStacks;

    /// Slots of a deep stack, and the pieces of memory that are mapped to them and to the guard regions in between.
    const DEEP_SLOTS: usize = 4;
    const DEEP_PIECES: usize = 2 * DEEP_SLOTS - 1;
    /// Bytes of a deep stack.
    pub const DEEP_STACK_SIZE: usize = DEEP_PIECES * THREAD_STACK_SIZE;

    /// A mapped stack, by its (uppermost) slot. Dropping it returns it to the pool.
    #[derive(Debug)]
    pub struct Stack {
        slot: usize,
        is_deep: bool,
    }

    /// Slots are below `fresh` if they were ever used; those are mapped and in use, or mapped and `free`, or `empty`.
    struct Pool {
        /// Memory mapped to each slot.
        memory: Vec<Option<Block>>,
        free: Vec<usize>,
        empty: Vec<usize>,
        /// Deep stacks that are not in use, by their uppermost slots.
        deep: Vec<usize>,
        /// Memory of all deep stacks, which stays mapped.
        of_deep: Vec<[Block; DEEP_PIECES]>,
    }

    static POOL: Mutex<Pool> = Mutex::new(Pool {
        memory: Vec::new(),
        free: Vec::new(),
        empty: Vec::new(),
        deep: Vec::new(),
        of_deep: Vec::new(),
    });

    fn flush_all_harts() {
        Machine::flush_tlb(Flush::Remote(HartSet::first(MAXIMUM_HARTS), Scope::All));
    }

    impl Stack {
        /// Takes a stack from the pool; several are made if there is none.
        ///
        /// # Errors
        /// [`OutOfStacks`].
        pub fn new() -> Result<Stack, OutOfStacks> {
            let mut pool = POOL.lock();
            if pool.free.is_empty() {
                pool.grow();
            }
            pool.free.pop().map(|slot| Stack { slot, is_deep: false }).ok_or(OutOfStacks)
        }

        /// Takes a deep stack, for code that was not written for a kernel.
        ///
        /// # Errors
        /// [`OutOfStacks`].
        pub fn new_deep() -> Result<Stack, OutOfStacks> {
            let mut pool = POOL.lock();
            if pool.deep.is_empty() {
                pool.grow_deep();
            }
            pool.deep.pop().map(|slot| Stack { slot, is_deep: true }).ok_or(OutOfStacks)
        }

        /// Prepares the stack for a thread; returns the thread's initial stack pointer.
        pub(crate) fn prepare(&self, entry: extern "C" fn(usize) -> !, argument: usize) -> usize {
            // SAFETY: the slot is mapped to memory of its own, all harts have flushed since (`grow`), and no code runs
            // on it: the owner of the `Stack` prepares it once, before the thread begins.
            unsafe { prepare_stack(thread_stack_top(self.slot), entry, argument) }
        }
    }

    impl Drop for Stack {
        fn drop(&mut self) {
            let mut pool = POOL.lock();
            // There is room: each slot is in one of the lists, and `grow` and `grow_deep` have reserved for all.
            if self.is_deep {
                pool.deep.push(self.slot);
                return;
            }
            pool.free.push(self.slot);
            if pool.free.len() >= KEPT + BATCH {
                pool.shrink();
            }
        }
    }

    impl Pool {
        /// Maps more stacks, as far as there is memory that programs could have too.
        fn grow(&mut self) {
            let mut done = 0;
            while done < BATCH && memory::frames::available_to_programs(2 * FRAMES) {
                if self.empty.is_empty() {
                    let slots = self.memory.len();
                    let room = slots + 1;
                    if slots >= THREAD_STACKS
                        || self.memory.try_reserve(1).is_err()
                        || self.free.try_reserve(room.saturating_sub(self.free.len())).is_err()
                        || self.empty.try_reserve(room.saturating_sub(self.empty.len())).is_err()
                    {
                        break;
                    }
                    self.memory.push(None);
                    self.empty.push(slots);
                }
                let (Some(&slot), Ok(block)) = (self.empty.last(), Block::allocate_bytes(THREAD_STACK_SIZE)) else {
                    break;
                };
                let frames = core::array::from_fn(|index| block.physical_address() + (index * PAGE) as u64);
                // SAFETY: the block is the pool's alone, which reaches it through this mapping only; the slot was
                // empty, and it is used after the flush below.
                unsafe { set_thread_stack(slot, Some(frames)) };
                self.memory[slot] = Some(block);
                self.empty.pop();
                self.free.push(slot);
                done += 1;
            }
            if done > 0 {
                flush_all_harts();
            }
        }

        /// Maps a deep stack, if there is memory that programs could have too.
        fn grow_deep(&mut self) {
            let first = self.memory.len();
            let more = self.of_deep.len() + 1;
            if first + DEEP_SLOTS > THREAD_STACKS
                || !memory::frames::available_to_programs(2 * DEEP_PIECES * FRAMES)
                || self.memory.try_reserve(DEEP_SLOTS).is_err()
                || self.deep.try_reserve(more.saturating_sub(self.deep.len())).is_err()
                || self.of_deep.try_reserve(1).is_err()
            {
                return;
            }
            let pieces: [_; DEEP_PIECES] = core::array::from_fn(|_| Block::allocate_bytes(THREAD_STACK_SIZE).ok());
            if pieces.iter().any(Option::is_none) {
                return;
            }
            let pieces = pieces.map(|piece| piece.expect("all are there"));
            let frames = |piece: &Block| core::array::from_fn(|index| piece.physical_address() + (index * PAGE) as u64);
            for (number, piece) in pieces.iter().enumerate() {
                // A stack, then the guard region above it, which joins it with the next one.
                let slot = first + number.div_ceil(2);
                // SAFETY: the memory is the pool's alone, which reaches it through this mapping only; the slots were
                // never used, and are used after the flush below.
                unsafe {
                    match number % 2 {
                        0 => set_thread_stack(slot, Some(frames(piece))),
                        _ => set_thread_stack_joined(slot, frames(piece)),
                    }
                }
            }
            // Its slots are in no list of the others.
            self.memory.resize_with(first + DEEP_SLOTS, || None);
            self.of_deep.push(pieces);
            self.deep.push(first + DEEP_SLOTS - 1);
            flush_all_harts();
        }

        /// Frees the memory of some unused stacks.
        fn shrink(&mut self) {
            let first = self.free.len() - BATCH;
            for &slot in &self.free[first..] {
                // SAFETY: the stack is unused, and stays so until it is mapped anew; its memory is freed after the
                // flush.
                unsafe { set_thread_stack(slot, None) };
            }
            flush_all_harts();
            for slot in self.free.drain(first..) {
                self.memory[slot] = None;
                self.empty.push(slot);
            }
        }
    }

    /// Leaves this stack for another one.
    ///
    /// # Safety
    /// As for the machine's `switch_stack`.
    pub(crate) unsafe fn switch(left: *mut usize, entered: usize) {
        // SAFETY: the caller's promise.
        unsafe { switch_stack(left, entered) };
    }
}

/// The developer's computer has no such stacks.
#[cfg(not(target_os = "none"))]
mod stack {
    /// Bytes of a stack.
    pub const STACK_SIZE: usize = 0;
    /// Bytes of a deep stack.
    pub const DEEP_STACK_SIZE: usize = 0;
    /// Stacks that are kept for threads to come.
    pub const KEPT: usize = 0;

    /// There is no memory for another stack, or there are too many.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OutOfStacks;

    /// A stack that cannot exist.
    #[derive(Debug)]
    pub enum Stack {}

    impl Stack {
        /// # Errors
        /// Always.
        pub fn new() -> Result<Stack, OutOfStacks> {
            Err(OutOfStacks)
        }

        /// # Errors
        /// Always.
        pub fn new_deep() -> Result<Stack, OutOfStacks> {
            Err(OutOfStacks)
        }

        pub(crate) fn prepare(&self, _entry: extern "C" fn(usize) -> !, _argument: usize) -> usize {
            match *self {}
        }
    }

    /// Is never called: there is no stack to leave or to enter.
    ///
    /// # Safety
    /// It does nothing.
    pub(crate) unsafe fn switch(_left: *mut usize, _entered: usize) {}
}
