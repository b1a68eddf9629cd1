//! The memory of a process: its own, or that of its parent until it executes a program or ends (`vfork`).
//!
//! A process of `vfork` begins in the memory of its parent, whose thread waits until the child has left that memory.
//! The child's own space is there from the beginning and empty, so that an `execve` finds it, and the look for the
//! present one is a flag and no lock: every copy to a program makes it.
//!
//! A borrower's life is bounded by its lender's: a lending worker leaves only when the borrower has left the memory,
//! and if it must go before that, it ends the borrower. So the memory of a process is freed by its own last worker, and
//! changed to another program's by its only one, and neither has to ask who else is there.
//!
//! Rejected: memory that belongs to the last process in it, as on Linux. Its pages would outlive the account that they
//! are charged to, and an `execve` of the lender would need another space in the place of the one that is lent.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::Waker;

use abi_queue::pages::PAGE_SIZE;
use spin::Mutex;
use usermode::Space;

use crate::process::accounts::{Account, Charge, Resource};
use crate::process::futex::Futexes;

/// Bytes that a borrower keeps of its lender, which may be gone by then: an empty space with the root of its tables.
pub(crate) const KEPT_OF_A_LENDER: usize = size_of::<Space>() + size_of::<Loan>() + PAGE_SIZE;

/// Indices of spaces.
const OWN: usize = 0;
const LENT: usize = 1;

/// An address space, with the things that belong to all processes in it.
#[derive(Clone)]
struct Parts {
    space: Arc<Space>,
    /// Waiters at its words.
    futexes: Arc<Futexes>,
    /// Charge for its page tables.
    tables: Arc<Mutex<Charge>>,
}

/// Memory that a process has lent.
struct Loan {
    parts: Parts,
    state: Mutex<LoanState>,
}

#[derive(Default)]
struct LoanState {
    is_over: bool,
    /// The waiting lender.
    lender: Option<Waker>,
}

/// The memory of a process.
#[doc(alias = "mm_struct")]
pub(crate) struct ProcessMemory {
    own: Parts,
    loan: Option<Loan>,
    /// The own space, and the lender's: chosen by an index, because a branch costs every copy more.
    spaces: [Arc<Space>; 2],
    /// The index of the present space.
    // Relaxed: both spaces are valid as long as the process. It is cleared when no worker and no call of the process is
    // under way but the one that clears it; all others are observers.
    present: AtomicUsize,
}

impl ProcessMemory {
    /// Makes the memory of a process with this account out of a space.
    pub(crate) fn new(space: Arc<Space>, account: &Arc<Account>) -> ProcessMemory {
        let tables = Arc::new(Mutex::new(account.nothing(Resource::Memory)));
        let spaces = [space.clone(), space.clone()];
        let own = Parts { space, futexes: Arc::default(), tables };
        ProcessMemory { own, loan: None, spaces, present: AtomicUsize::new(OWN) }
    }

    /// Makes memory that is a lender's at first, and later in its own space, which is empty.
    pub(crate) fn borrowed(lender: &ProcessMemory, space: Arc<Space>, account: &Arc<Account>) -> ProcessMemory {
        let own = ProcessMemory::new(space.clone(), account).own;
        let loan = Loan { parts: lender.present().clone(), state: Mutex::default() };
        let spaces = [space, loan.parts.space.clone()];
        ProcessMemory { own, loan: Some(loan), spaces, present: AtomicUsize::new(LENT) }
    }

    #[inline]
    fn present(&self) -> &Parts {
        match &self.loan {
            Some(loan) if self.is_borrowing() => &loan.parts,
            _ => &self.own,
        }
    }

    /// Returns the present space.
    #[inline(always)]
    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.spaces[self.present.load(Ordering::Relaxed) & LENT]
    }

    /// Returns the waiters at words of the present space.
    #[inline]
    pub(crate) fn futexes(&self) -> &Arc<Futexes> {
        &self.present().futexes
    }

    /// Returns the charge for the page tables of the present space.
    pub(crate) fn tables(&self) -> &Mutex<Charge> {
        &self.present().tables
    }

    /// Returns the process's own space, which is empty while it borrows.
    pub(crate) fn own_space(&self) -> &Space {
        &self.own.space
    }

    /// Returns whether it is another process's.
    #[inline(always)]
    pub(crate) fn is_borrowing(&self) -> bool {
        self.present.load(Ordering::Relaxed) == LENT
    }

    /// Goes over to the own space, if it is not there. Called by the last worker.
    pub(crate) fn leave_lender(&self) {
        self.present.store(OWN, Ordering::Relaxed);
    }

    /// Lets the lender go on, if there is one: nothing of the process touches its memory any more.
    pub(crate) fn end_loan(&self) {
        if let Some(loan) = &self.loan {
            let mut state = loan.state.lock();
            state.is_over = true;
            if let Some(lender) = state.lender.take() {
                lender.wake();
            }
        }
    }

    /// Returns whether the process has left its lender's memory; if not, `waker` is woken then.
    pub(crate) fn poll_loan_is_over(&self, waker: &Waker) -> bool {
        let Some(loan) = &self.loan else { return true };
        let mut state = loan.state.lock();
        if !state.is_over {
            state.lender = Some(waker.clone());
        }
        state.is_over
    }
}
