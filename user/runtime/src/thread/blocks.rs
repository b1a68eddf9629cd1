//! The memory of threads: a block with what belongs to the thread, and a stack.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};

use unix::Result;

use super::{Body, GUARD, drop_values};
use crate::local::{self, Local};
use crate::lock::Lock;

/// Stacks that are kept for later threads.
const KEPT_STACKS: usize = 64;

/// A thread's own memory beside its stack. Blocks are never freed, and are used again.
struct ThreadBlock {
    local: Local,
    /// Number of the thread while the kernel has it or will have it; 0 when the stack is free.
    number: AtomicU32,
    /// Mapping of the stack with its guard, and the stack's size; null if there is none.
    stack: Cell<*mut u8>,
    size: Cell<usize>,
    body: Cell<Option<Body>>,
}

// SAFETY: the cells are used by the code that has taken the block out of the pool, then by its thread alone until that
// has put it back; the pool's lock, and the number that the kernel sets to 0, order the two.
unsafe impl Sync for ThreadBlock {}

/// The blocks without a running thread.
struct BlockPool {
    /// Blocks with a stack, in the order in which their threads ended.
    with_stack: VecDeque<&'static ThreadBlock>,
    /// Blocks without a stack.
    bare: Vec<&'static ThreadBlock>,
}

static POOL: Lock<BlockPool> = Lock::new(BlockPool { with_stack: VecDeque::new(), bare: Vec::new() });

impl ThreadBlock {
    /// Takes a block with a stack of this size for a new thread.
    fn take(size: usize) -> Result<&'static ThreadBlock> {
        let block = {
            let mut pool = POOL.lock();
            // The block whose thread ended first; if the kernel still has that thread, it has the later ones too.
            // Acquire: pairs with the kernel's release when it set the number to 0.
            match pool.with_stack.front() {
                Some(block) if block.number.load(Ordering::Acquire) == 0 => pool.with_stack.pop_front(),
                _ => pool.bare.pop(),
            }
        };
        let block = block.unwrap_or_else(|| {
            Box::leak(Box::new(ThreadBlock {
                local: Local::new(),
                number: AtomicU32::new(0),
                stack: Cell::new(core::ptr::null_mut()),
                size: Cell::new(0),
                body: Cell::new(None),
            }))
        });
        if block.size.get() != size {
            block.unmap_stack();
            if let Err(error) = block.map_stack(size) {
                POOL.lock().bare.push(block);
                return Err(error);
            }
        }
        Ok(block)
    }

    fn map_stack(&self, size: usize) -> Result<()> {
        let mapping = unix::memory::map(GUARD + size)?;
        // SAFETY: the mapping is new, and its first page is unused.
        if let Err(error) = unsafe { unix::memory::protect(mapping, GUARD, 0) } {
            // SAFETY: as above.
            let _ = unsafe { unix::memory::unmap(mapping, GUARD + size) };
            return Err(error);
        }
        self.stack.set(mapping);
        self.size.set(size);
        Ok(())
    }

    fn unmap_stack(&self) {
        let (stack, size) = (self.stack.replace(core::ptr::null_mut()), self.size.replace(0));
        if !stack.is_null() {
            // SAFETY: the kernel is done with the thread that used it, and no other has got it.
            let _ = unsafe { unix::memory::unmap(stack, GUARD + size) };
        }
    }

    /// Puts the block of a thread that did not start, or that is about to end, into the pool.
    fn put_back(&'static self) {
        let surplus = {
            let mut pool = POOL.lock();
            pool.with_stack.push_back(self);
            let is_surplus = pool.with_stack.len() > KEPT_STACKS
                && pool.with_stack.front().is_some_and(|block| block.number.load(Ordering::Acquire) == 0);
            if is_surplus { pool.with_stack.pop_front() } else { None }
        };
        if let Some(block) = surplus {
            block.unmap_stack();
            POOL.lock().bare.push(block);
        }
    }
}

/// Starts a thread with a stack of this size.
pub(super) fn start(size: usize, body: Body) -> Result<()> {
    let block = ThreadBlock::take(size)?;
    block.body.set(Some(body));
    block.local.index.set(local::NO_WORKER);
    // SAFETY: the stack ends there, and is the thread's until its number is 0, which `take` and `put_back` look at; the
    // block stays for ever.
    let started = unsafe {
        let top = block.stack.get().add(GUARD + size);
        unix::thread::start(
            enter,
            block as *const ThreadBlock as usize,
            top,
            &raw const block.local as usize,
            &block.number,
        )
    };
    if let Err(error) = started {
        drop(block.body.take());
        block.put_back();
        return Err(error);
    }
    Ok(())
}

/// A thread's first function.
extern "C" fn enter(block: usize) -> ! {
    // SAFETY: `spawn` passed a block, and blocks are never freed.
    let block: &'static ThreadBlock = unsafe { &*(block as *const ThreadBlock) };
    let finished = block.body.take().map(|body| body());
    drop_values(&block.local.values);
    if let Some(finished) = finished {
        finished.finish();
    }
    // From here on only the stack is used, until the kernel sets the number to 0.
    block.put_back();
    unix::worker::exit()
}
