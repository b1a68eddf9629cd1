//! Workers: the data of a worker, its sleep, and its processor time.
//!
//! A worker is an execution context of a process: registers, and the right to run the process's executor. Its kernel
//! side is a coroutine ([`switching`](crate::process::switching)) that visits user mode
//! ([`visit`](crate::process::visit)). This file holds the worker's state, which others read and change: its wakers,
//! its priority, and the processor time that it has used.

use alloc::sync::Arc;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_unix::call::NUMBER_MASK;
use abi_unix::types::process_control;
use abi_unix::{Counter, Errno, SystemCall};
use coroutine::State;
use hal_api::{MAXIMUM_HARTS, Machine as _, UserContext};
use memory::heap::Kept;
use platform::Machine;
use spin::Mutex;

use crate::asynchronous::user_interrupts::{self, InterruptLine, back_end};
use crate::observing::call_log::{self, OpenCall};
use crate::observing::counters;
use crate::process::accounts::{Charge, MEMORY_OF_A_WAIT, Resource};
use crate::process::signals::{self, Interruption, OwnSignals};
use crate::process::{self, Process, table};
use crate::scheduling::executor::{self, Cid, EXHAUSTED, Owner};
use crate::scheduling::standing::{self, KernelTime, UsedTime};
use crate::scheduling::{self, payers};
use crate::time;

const NOWHERE: usize = usize::MAX;

/// Number of bytes of kernel memory for a worker or thread and its coroutine.
const MEMORY: usize = size_of::<Worker>() + size_of::<UserContext>() + 1024 + MEMORY_OF_A_WAIT;

/// Resources that a worker must have before it is made.
pub(super) struct Means {
    deadline: time::Reservation,
    charge: Charge,
    kept: Kept,
}

impl Means {
    /// Takes the resources of a worker with a kernel stack of so many bytes. `ENOMEM`.
    pub(super) fn new(process: &Process, stack: usize) -> Result<Means, Errno> {
        Ok(Means {
            charge: process.account.charge(Resource::Memory, MEMORY + stack)?,
            kept: Kept::new(MEMORY_OF_A_WAIT).map_err(|_| Errno::ENOMEM)?,
            deadline: time::Reservation::new()?,
        })
    }
}

/// Reasons for a worker to look around before it goes to user mode, as bits.
pub(super) struct Attention;

impl Attention {
    /// It leaves for good.
    pub(super) const STOP: u8 = 1;
    /// It may have signals to handle.
    pub(super) const SIGNAL: u8 = 2;
    /// The signals that it blocks were replaced for a call.
    pub(super) const BLOCKED: u8 = 4;
    /// It is to tell where it is.
    pub(super) const POSITION: u8 = 8;
    /// It has touched a page, its next call is about to, or its last call has: the page has to be fetched.
    const TOUCHED: u8 = 16;
    const NEXT_CALL: u8 = 32;
    const LAST_CALL: u8 = 64;
    pub(super) const FETCHES: u8 = Attention::TOUCHED | Attention::NEXT_CALL | Attention::LAST_CALL;
}

/// Reasons to wait that are no calls.
pub(super) mod awaited {
    pub(in crate::process) const TURN: u32 = u32::MAX;
    pub(in crate::process) const PAGE: u32 = u32::MAX - 1;
    pub(in crate::process) const CONTINUATION: u32 = u32::MAX - 2;
}

/// The pages that are fetched before a worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PagesOf {
    /// That at an address, which an instruction has touched.
    Instruction { address: u64 },
    /// Those of the buffers of the call that it makes next.
    NextCall,
    /// One that its last call has missed.
    LastCall,
}

/// A worker of a process.
#[doc(alias = "task_struct")]
#[doc(alias = "thread_struct")]
#[doc(alias = "thread_info")]
pub(crate) struct Worker {
    /// Its process.
    pub process: Arc<Process>,
    index: AtomicUsize,
    // Stored with release by the spawner, or by the coroutine in its first turn, and loaded with acquire: a caller that
    // finds a coroutine finds the worker that was made for it.
    cid: AtomicU64,
    /// The hart on which it is in user mode, or [`NOWHERE`].
    hart: AtomicUsize,
    /// Set when its coroutine is done, and another worker may have its index.
    // Release and acquire: the next worker with the index finds the page as this one has left it.
    gone: AtomicBool,
    /// [`Attention`]s that it has not paid.
    // Set with release after its reason, and read with acquire before the look for the reason.
    attention: AtomicU8,
    /// The address that an instruction has touched whose page has to be fetched, or the first argument of the last call
    /// that may have to be made again. Used by the worker itself alone.
    touched: AtomicU64,
    /// The reason why it is not in user mode: the number of a call, or one of [`awaited`]. It means nothing while it is
    /// visited.
    awaited: AtomicU32,
    /// Its signals.
    pub signals: OwnSignals,
    /// Deadline of its sleeps with a time limit.
    deadline: time::Reservation,
    /// Charge for itself and its carrier.
    charge: Mutex<Charge>,
    /// Memory for its waits.
    _kept: Kept,
    parking: Mutex<Parking>,
    /// Its user interrupts.
    pub line: InterruptLine,
    /// Name of a thread, which it has from its creator until it takes another; that of a worker is its process's.
    name: [AtomicU64; 2],
    /// User address of the word that becomes 0 when it ends (unvalidated); 0 for none.
    end_word: AtomicUsize,
    /// User address of the head of its list of robust locks (unvalidated); 0 for none.
    robust_list: AtomicUsize,
    slack: TimerSlack,
    /// The call that it has made, if its process is watched.
    pub open_call: OpenCall,
    /// The harts that it has chosen, a bit each, which is told and changes nothing.
    affinity: AtomicU8,
    time: Time,
}

// A bit for each hart.
const _: () = assert!(MAXIMUM_HARTS <= u8::BITS as usize);

/// Time by which a sleep may end late, so that several sleeps end at one interrupt.
struct TimerSlack {
    ns: AtomicU64,
    /// That of its creator, which 0 stands for.
    default_ns: AtomicU64,
}

impl Default for TimerSlack {
    fn default() -> TimerSlack {
        let usual = || AtomicU64::new(process_control::TIMERSLACK_NS);
        TimerSlack { ns: usual(), default_ns: usual() }
    }
}

/// Processor time that the worker has used, and time that it has waited.
#[derive(Default)]
struct Time {
    /// Ticks that were charged.
    cpu: AtomicU64,
    /// The most ticks that its clock has shown.
    shown: AtomicU64,
    /// The tick since which it runs uncharged; 0 while it does not run.
    since: AtomicU64,
    /// Number of times that it has begun to run.
    turns: AtomicU64,
    /// Value of `turns` when the watchdog last found it ready, plus 1, so that 0 means never.
    seen_at: AtomicU64,
    /// The hart that an interrupt has taken from its program, plus 1: the way back there is the other's to pay. 0 for
    /// none.
    taken: AtomicUsize,
    /// Ticks that it may still run as the most important of all, because it had been ready for long.
    credit: AtomicU64,
    /// The part of the ticks that the kernel has used for the worker.
    kernel: KernelTime,
}

#[derive(Default)]
struct Parking {
    /// Set if the worker was woken while it was not asleep: its next sleep ends immediately.
    permit: bool,
    sleeper: Option<Waker>,
    /// Whether the sleeper has a deadline.
    is_timed: bool,
}

impl Worker {
    /// Records its coroutine, which must be known before its first turn, too; that may be long in coming. A worker that
    /// has had its first turn by now has recorded its coroutine itself, and may have gone on to another one, with
    /// another carrier.
    pub(super) fn was_spawned_as(&self, cid: Cid) {
        let _ = self.cid.compare_exchange(0, cid.raw(), Ordering::Release, Ordering::Relaxed);
    }

    /// Records the coroutine that runs now as its own: before it can wait for anything, so that its wakers know it.
    pub(crate) fn runs_in(&self, cid: Cid) {
        self.cid.store(cid.raw(), Ordering::Release);
    }

    /// Charges its process for so many bytes beside its own. An error if the process may not have them.
    pub(crate) fn charge_also(&self, bytes: usize) -> Result<(), Errno> {
        self.charge.lock().resize(MEMORY + bytes)
    }

    /// Returns the deadline that is reserved for its sleeps.
    pub(crate) fn deadline(&self) -> &time::Reservation {
        &self.deadline
    }

    /// Records that it is in user mode on a hart, before the fence that pairs with the one in
    /// [`call_back`](Self::call_back).
    pub(super) fn visits(&self, hart: usize) {
        self.hart.store(hart, Ordering::Relaxed);
    }

    /// Records that it is not in user mode any more.
    pub(super) fn visits_no_more(&self) {
        self.hart.store(NOWHERE, Ordering::Relaxed);
    }

    /// Records that it leaves by its own call.
    pub(super) fn is_leaving(&self) {
        self.set_attention(Attention::STOP);
    }

    /// Makes it look around before it next goes to user mode; it may have to be [interrupted](Self::interrupt) for
    /// that.
    pub(super) fn set_attention(&self, attention: u8) {
        // Release: a worker that sees it sees its reason, too.
        self.attention.fetch_or(attention, Ordering::Release);
    }

    /// Takes attention back, before the look for its reason: a later reason sets it again.
    pub(super) fn clear_attention(&self, attention: u8) {
        // Acquire: pairs with the release above. Release: no later look comes before it.
        self.attention.fetch_and(!attention, Ordering::AcqRel);
    }

    /// Returns whether it must look around before it goes to user mode or waits, for its own reasons or for those of
    /// its process.
    #[inline(always)]
    pub(super) fn needs_attention(&self, process: &Process) -> bool {
        // Relaxed: the looks that follow acquire.
        process.condition() | self.attention.load(Ordering::Relaxed) != 0
    }

    /// Notes that pages have to be fetched before it goes on.
    pub(crate) fn has_to_fetch(&self, pages: PagesOf) {
        self.set_attention(match pages {
            PagesOf::Instruction { address } => {
                self.touched.store(address, Ordering::Relaxed);
                Attention::TOUCHED
            }
            PagesOf::NextCall => Attention::NEXT_CALL,
            PagesOf::LastCall => Attention::LAST_CALL,
        });
    }

    /// Returns whether pages have to be fetched before it goes on.
    pub(super) fn fetches(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & Attention::FETCHES != 0
    }

    /// Keeps the first argument of a call, whose result will take its place.
    pub(crate) fn keep_argument(&self, argument: u64) {
        self.touched.store(argument, Ordering::Relaxed);
    }

    /// Returns the first argument of its last call, which was kept.
    pub(crate) fn kept_argument(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    /// Takes back that pages have to be fetched, and returns which.
    pub(crate) fn take_pages_to_fetch(&self) -> PagesOf {
        let attention = self.attention.load(Ordering::Relaxed);
        self.clear_attention(Attention::FETCHES);
        match attention {
            attention if attention & Attention::TOUCHED != 0 => {
                PagesOf::Instruction { address: self.touched.load(Ordering::Relaxed) }
            }
            attention if attention & Attention::NEXT_CALL != 0 => PagesOf::NextCall,
            _ => PagesOf::LastCall,
        }
    }

    /// Gives its index back: it does nothing any more.
    pub(super) fn leaves_its_index(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Returns whether it has given its index back.
    pub(super) fn has_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Returns whether it has ticks left to run as the most important worker, because it had been ready for long.
    pub(crate) fn has_credit(&self) -> bool {
        self.time.credit.load(Ordering::Relaxed) != 0
    }

    /// Takes the rest of those ticks: a worker that waits for something does not starve any more.
    pub(crate) fn forget_credit(&self) {
        self.time.credit.store(0, Ordering::Relaxed);
    }

    pub(super) fn new(process: &Arc<Process>, index: usize, means: Means) -> Worker {
        let Means { deadline, charge, kept } = means;
        Worker {
            process: process.clone(),
            index: AtomicUsize::new(index),
            cid: AtomicU64::new(0),
            hart: AtomicUsize::new(NOWHERE),
            gone: AtomicBool::new(false),
            attention: AtomicU8::new(0),
            touched: AtomicU64::new(0),
            awaited: AtomicU32::new(awaited::TURN),
            signals: OwnSignals::new(),
            deadline,
            charge: Mutex::new(charge),
            _kept: kept,
            parking: Mutex::new(Parking::default()),
            line: InterruptLine::default(),
            name: [const { AtomicU64::new(0) }; 2],
            end_word: AtomicUsize::new(0),
            robust_list: AtomicUsize::new(0),
            slack: TimerSlack::default(),
            open_call: OpenCall::default(),
            affinity: AtomicU8::new(u8::MAX),
            time: Time::default(),
        }
    }

    /// Returns whether it is a thread: it runs its own code, and has no word in the process page.
    pub(crate) fn is_thread(&self) -> bool {
        self.index() >= process::MAXIMUM_WORKERS
    }

    /// Returns its name.
    pub(crate) fn name(&self) -> [u64; 2] {
        match self.is_thread() {
            true => self.name.each_ref().map(|word| word.load(Ordering::Relaxed)),
            false => self.process.name(),
        }
    }

    /// Sets its name, which is that of the process as well if it is no thread.
    pub(crate) fn set_name(&self, name: [u64; 2]) {
        if !self.is_thread() {
            return self.process.set_name(name);
        }
        for (word, name) in self.name.iter().zip(name) {
            word.store(name, Ordering::Relaxed);
        }
    }

    /// Returns its priority while it publishes nothing.
    pub(crate) fn own_priority(&self) -> Priority {
        self.process.standing.worth(self.process.default_priority())
    }

    /// Returns its present priority: a worker's follows the process's published bitmaps, a thread's is the process's
    /// default.
    fn claimed_priority(&self) -> Priority {
        if self.is_thread() { self.own_priority() } else { self.process.claimed_priority() }
    }

    /// Returns the address of the word that becomes 0 when it ends.
    pub(crate) fn end_word(&self) -> usize {
        self.end_word.load(Ordering::Relaxed)
    }

    /// Sets the word that becomes 0 when it ends; 0 for none.
    pub(crate) fn set_end_word(&self, address: usize) {
        self.end_word.store(address, Ordering::Relaxed);
    }

    /// Returns the nanoseconds by which its sleeps may end late.
    pub(crate) fn timer_slack_ns(&self) -> u64 {
        self.slack.ns.load(Ordering::Relaxed)
    }

    /// Sets by how many nanoseconds its sleeps may end late; 0 for as many as at its creation.
    pub(crate) fn set_timer_slack_ns(&self, ns: u64) {
        let ns = if ns == 0 { self.slack.default_ns.load(Ordering::Relaxed) } else { ns };
        self.slack.ns.store(ns, Ordering::Relaxed);
    }

    /// Returns the harts that it has chosen, a bit each; bits of harts that there are not are set, or not.
    pub(crate) fn affinity(&self) -> u8 {
        self.affinity.load(Ordering::Relaxed)
    }

    /// Chooses harts.
    pub(crate) fn set_affinity(&self, harts: u8) {
        self.affinity.store(harts, Ordering::Relaxed);
    }

    /// Takes over the slack and the harts of its creator.
    pub(crate) fn inherit_settings(&self, creator: &Worker) {
        let ns = creator.timer_slack_ns();
        self.slack.default_ns.store(ns, Ordering::Relaxed);
        self.slack.ns.store(ns, Ordering::Relaxed);
        self.set_affinity(creator.affinity());
    }

    /// Returns the address of the head of its list of robust locks.
    pub(crate) fn robust_list(&self) -> usize {
        self.robust_list.load(Ordering::Relaxed)
    }

    /// Sets the address of the head of its list of robust locks; 0 for none.
    pub(crate) fn set_robust_list(&self, head: usize) {
        self.robust_list.store(head, Ordering::Relaxed);
    }

    /// Returns its slot in the process: below [`process::MAXIMUM_WORKERS`] for workers, from there on for threads.
    pub(crate) fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed)
    }

    /// Returns whether it is in user mode on some hart, or in a call that it has made there.
    pub(crate) fn is_visited(&self) -> bool {
        self.hart.load(Ordering::Relaxed) != NOWHERE
    }

    /// Notes why it is about to wait.
    pub(super) fn awaits(&self, reason: u32) {
        // It stands for itself.
        self.awaited.store(reason, Ordering::Relaxed);
    }

    /// Returns the name of what it waits for, as in `/proc/PID/wchan`: of a call, of something else, or `None` if it
    /// waits for nothing or for its turn.
    pub(crate) fn awaited(&self) -> Option<&'static str> {
        let cid = Cid::from_raw(self.cid.load(Ordering::Acquire));
        if self.is_visited() || executor::state(cid) == Some(State::Ready) {
            return None;
        }
        match self.awaited.load(Ordering::Relaxed) {
            awaited::TURN => None,
            awaited::PAGE => Some("page"),
            awaited::CONTINUATION => Some("stopped"),
            number => SystemCall::from_number(number as usize & NUMBER_MASK).map(SystemCall::name),
        }
    }

    /// Makes it wait for a hart no longer than something of this priority would; returns `false` if it does not wait
    /// for one.
    pub(crate) fn bring_forward(&self, priority: Priority) -> bool {
        let cid = Cid::from_raw(self.cid.load(Ordering::Acquire));
        if executor::state(cid) != Some(State::Ready) {
            return false;
        }
        if executor::priority(cid).is_some_and(|now| priority.is_more_important_than(now)) {
            executor::set_priority(cid, priority);
        }
        true
    }

    /// Returns its number for programs: worker 0 has the process's, the others follow far above.
    pub(crate) fn thread_id(&self) -> u32 {
        self.process.id + self.index() as u32 * 0x1_0000
    }

    /// Returns whether it must leave for good.
    pub(crate) fn is_to_stop(&self) -> bool {
        self.process.has_ended() || self.attention.load(Ordering::Acquire) & Attention::STOP != 0
    }

    /// Returns whether it has left, or will without another look at its signals.
    pub(super) fn leaves(&self) -> bool {
        self.has_gone() || self.attention.load(Ordering::Acquire) & Attention::STOP != 0
    }

    /// Ends this worker alone.
    pub(crate) fn stop(&self) {
        if self.attention.fetch_or(Attention::STOP, Ordering::AcqRel) & Attention::STOP == 0 {
            self.interrupt();
        }
    }

    /// Makes the worker look around: wakes its coroutine, and calls it back from user mode on another hart.
    #[doc(alias = "set_tsk_need_resched")]
    pub(crate) fn interrupt(&self) {
        executor::wake(Cid::from_raw(self.cid.load(Ordering::Acquire)));
        self.call_back();
    }

    /// Asks it to print where it is, at its next look around.
    pub(crate) fn ask_position(&self) {
        self.set_attention(Attention::POSITION);
        self.interrupt();
    }

    /// Returns whether it was asked and has not printed it; from then on it was not asked.
    pub(crate) fn take_position_request(&self) -> bool {
        self.attention.fetch_and(!Attention::POSITION, Ordering::AcqRel) & Attention::POSITION != 0
    }

    /// Gives its coroutine the greatest importance, to end.
    pub(crate) fn boost(&self) {
        executor::set_priority(Cid::from_raw(self.cid.load(Ordering::Acquire)), Priority::HIGHEST);
    }

    /// Returns the present priority of its coroutine.
    pub(crate) fn priority(&self) -> Priority {
        match self.time.credit.load(Ordering::Relaxed) {
            0 => self.claimed_priority(),
            _ => self.process.standing.limit(Priority::HIGHEST),
        }
    }

    /// Returns its priority while it waits for its turn; then it will look at the completions that its process has not
    /// taken.
    pub(super) fn priority_in_queue(&self) -> Priority {
        match self.time.credit.load(Ordering::Relaxed) {
            0 => self.priority_without_boost(),
            _ => self.priority(),
        }
    }

    /// Returns its priority in a queue by its process's claims alone.
    pub(crate) fn priority_without_boost(&self) -> Priority {
        if self.is_thread() { self.own_priority() } else { self.process.claimed_with_completions() }
    }

    /// Returns whether something ready on this hart goes before it. Called after each call, so quick if nothing is
    /// ready.
    #[inline(always)]
    pub(super) fn is_outranked(&self) -> bool {
        executor::is_anything_ready() && executor::is_ready_above(self.priority())
    }

    /// Returns its coroutine.
    pub(crate) fn coroutine(&self) -> Cid {
        Cid::from_raw(self.cid.load(Ordering::Acquire))
    }

    /// Gives its coroutine its present priority.
    pub(crate) fn order_anew(&self) {
        executor::set_priority(Cid::from_raw(self.cid.load(Ordering::Acquire)), self.priority());
    }

    /// Counts a turn, which it has now.
    pub(crate) fn count_turn(&self) {
        let turns = &self.time.turns;
        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns whether the worker has been ready since the watchdog's last look without a turn; if so, makes it the
    /// most important of all until it has run for a slice.
    pub(crate) fn is_starving(&self) -> bool {
        let cid = Cid::from_raw(self.cid.load(Ordering::Acquire));
        if executor::state(cid) != Some(State::Ready) {
            self.time.seen_at.store(0, Ordering::Relaxed);
            return false;
        }
        let turns = self.time.turns.load(Ordering::Relaxed) + 1;
        if self.time.seen_at.swap(turns, Ordering::Relaxed) != turns {
            return false;
        }
        self.time.credit.store(time::slice_ticks(), Ordering::Relaxed);
        executor::set_priority(cid, Priority::HIGHEST);
        true
    }

    /// Charges the time that it has used up to now.
    #[doc(alias = "account_user_time")]
    #[doc(alias = "update_curr")]
    pub(super) fn charge(&self, now: u64, since: u64) {
        let used = payers::take(now);
        self.time.since.store(since, Ordering::Relaxed);
        // Two harts may come here, when the worker goes on with another carrier.
        self.time.cpu.fetch_add(used, Ordering::Relaxed);
        let credit = self.time.credit.load(Ordering::Relaxed);
        if credit != 0 {
            self.time.credit.store(credit.saturating_sub(used), Ordering::Relaxed);
        }
        scheduling::charge(&self.process, used, now);
    }

    /// Records that the hart goes to another coroutine because of an interrupt, up to which this worker was charged.
    #[cold]
    pub(super) fn is_interrupted(&self) {
        self.time.since.store(0, Ordering::Relaxed);
        self.time.taken.store(Machine::hart() + 1, Ordering::Relaxed);
    }

    /// Returns whether an interrupt has taken this hart, and the worker was charged up to there.
    #[inline(always)]
    pub(super) fn was_interrupted(&self) -> bool {
        match self.time.taken.load(Ordering::Relaxed) {
            0 => false,
            taken => taken == Machine::hart() + 1,
        }
    }

    /// Records the tick since which it runs uncharged.
    pub(super) fn goes_on_since(&self, tick: u64) {
        self.time.since.store(tick, Ordering::Relaxed);
    }

    /// Goes on after an interrupt: on the same hart, the process that had it in between pays for the way back. (On
    /// another one, and behind all others, the worker has a way of its own.)
    #[cold]
    fn is_back(&self) {
        let is_here = self.was_interrupted();
        self.time.taken.store(0, Ordering::Relaxed);
        let other = payers::previous();
        if is_here
            && other != self.process.id
            && executor::current_priority() != EXHAUSTED
            && let Some(other) = table::find(other)
        {
            let now = Machine::now();
            scheduling::charge(&other, payers::take(now), now);
        }
    }

    /// Returns the ticks that it has used and was not charged yet.
    pub(crate) fn uncharged(&self, now: u64) -> u64 {
        match self.time.since.load(Ordering::Relaxed) {
            0 => 0,
            since => now.saturating_sub(since),
        }
    }

    /// Returns the ticks that it has used up to now; never less than before.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let ticks = self.time.cpu.load(Ordering::Relaxed) + self.uncharged(Machine::now());
        standing::never_back(&self.time.shown, ticks)
    }

    /// Returns the parts of that time.
    pub(crate) fn used_time(&self) -> UsedTime {
        self.time.kernel.divide(self.cpu_ticks())
    }

    /// Does long work of the worker, which is measured as the kernel's for the worker and for its process.
    pub(crate) fn measure<R>(&self, work: impl FnOnce() -> R) -> R {
        self.time.kernel.measure(|| self.process.standing.kernel.measure(work))
    }

    /// Does long work of the worker that is measured as the kernel's for its process elsewhere.
    #[cold]
    #[inline(never)]
    pub(crate) fn measure_too<R>(&self, work: impl FnOnce() -> R) -> R {
        self.time.kernel.measure(work)
    }

    /// Counts an interrupt of the timer for the worker and for its process, in a call or in the program.
    pub(super) fn sample(&self, was_in_call: bool) {
        self.time.kernel.sample(was_in_call);
        self.process.standing.kernel.sample(was_in_call);
    }

    /// Wakes the worker now, or ends its next sleep immediately.
    #[doc(alias = "wake_up_process")]
    pub(crate) fn wake(&self) {
        let sleeper = {
            let mut parking = self.parking.lock();
            let sleeper = parking.sleeper.take();
            parking.permit = sleeper.is_none();
            sleeper
        };
        if let Some(waker) = sleeper {
            waker.wake();
        }
    }

    /// Looks again at its signals before user mode, after a change to the set that it blocks.
    pub(super) fn look_again(&self, signals: &mut signals::SignalState) {
        if signals.has_any_for(&self.signals) {
            self.set_attention(Attention::SIGNAL);
        }
    }

    /// Becomes the first worker of another program, without handler and interrupts.
    pub(super) fn start_afresh(&self) {
        self.index.store(0, Ordering::Relaxed);
        self.set_end_word(0);
        self.set_robust_list(0);
        call_log::is_forgotten(self);
        self.signals.start_afresh();
        self.line.reset();
    }

    /// Sends the worker a user interrupt for completions; returns `false` if it has no handler.
    pub(crate) fn interrupt_for_completions(&self) -> bool {
        if !self.line.has_handler() {
            return false;
        }
        self.process.shared.add_interrupts(self.index(), user_interrupts::COMPLETIONS);
        if !self.interrupt_in_hardware() {
            self.line.set_pending();
            self.call_back();
        }
        true
    }

    /// Sends the worker the user interrupts of these bits: shows them to its handler, and wakes or interrupts it.
    /// Without a handler they wait for one.
    pub(crate) fn raise(&self, bits: u64) {
        self.process.shared.add_interrupts(self.index(), bits);
        if self.interrupt_in_hardware() {
            return;
        }
        self.line.set_pending();
        // Pending was set before the look at the parking place; a worker that parks looks in the other order under the
        // same lock.
        if !self.wake_if_parked(self.process.standing.worth(self.process.default_priority())) {
            self.call_back();
        }
    }

    /// Interrupts a worker that runs on another hart without calling it back; returns `false` if it does not run there,
    /// or has no place in the hardware for that. If it leaves the hart at this moment, the interrupt is noticed: it
    /// stays in a guest interrupt file, which is watched, or the worker takes it out of its slot.
    fn interrupt_in_hardware(&self) -> bool {
        let hart = self.hart.load(Ordering::Relaxed);
        back_end::is_in_hardware() && hart != NOWHERE && hart != Machine::hart() && self.line.notify_directly()
    }

    /// Wakes the worker, now or when it is about to sleep: an interrupt has come in its guest interrupt file while it
    /// does not run.
    pub(crate) fn wake_for_interrupt(&self) {
        // The priority of the coroutines that its handler will wake is not known yet. A worker that is more important
        // already, because it starves or must end, stays so.
        let (cid, own) = (Cid::from_raw(self.cid.load(Ordering::Acquire)), self.own_priority());
        if executor::priority(cid).is_some_and(|now| own.is_more_important_than(now)) {
            executor::set_priority(cid, own);
        }
        self.wake();
    }

    /// Calls the worker back from user mode on another hart.
    #[doc(alias = "smp_send_reschedule")]
    #[doc(alias = "kick")]
    fn call_back(&self) {
        // The change that the worker must see was stored before; it stores its hart before it looks. With a fence on
        // both sides at least one of the two sees the other's store.
        fence(Ordering::SeqCst);
        let hart = self.hart.load(Ordering::Relaxed);
        if hart != NOWHERE && hart != Machine::hart() {
            counters::count(Counter::HartInterrupts);
            Machine::send_ipi(hart);
        }
    }

    /// Returns whether it sleeps without a deadline, as none of its coroutines is ready.
    pub(super) fn sleeps_without_limit(&self) -> bool {
        let parking = self.parking.lock();
        parking.sleeper.is_some() && !parking.is_timed
    }

    /// Wakes the worker if it sleeps, with this priority for its coroutine; returns `false` if it does not sleep.
    pub(crate) fn wake_if_parked(&self, priority: Priority) -> bool {
        let Some(waker) = self.parking.lock().sleeper.take() else { return false };
        executor::set_priority(Cid::from_raw(self.cid.load(Ordering::Acquire)), priority);
        waker.wake();
        true
    }

    /// Sleeps until there is news for the worker: completions beyond `seen`, or a wake-up by another worker; or until
    /// `deadline` (ticks).
    ///
    /// # Cancellation
    /// Dropping it leaves the worker awake; nothing is lost.
    pub(super) async fn park(
        &self,
        seen: u64,
        deadline: Option<u64>,
        look: impl Fn(&Waker) -> Interruption,
    ) -> Result<usize, Errno> {
        let mut alarm = None;
        let result = poll_fn(|cx| {
            match look(cx.waker()) {
                Interruption::GoOn => {}
                Interruption::Hold => return Poll::Pending,
                Interruption::Handler | Interruption::Leave => return Poll::Ready(Err(Errno::EINTR)),
            }
            // The program has made room in the ring; completions that waited for that are news too.
            self.process.post_waiting_completions();
            let mut parking = self.parking.lock();
            // A handler that came in the middle of the scheduler's image has left its word for a little later.
            let left_for_later = back_end::is_in_hardware() && self.process.shared.has_interrupts(self.index());
            let interrupted = self.line.has_handler() && (self.line.is_pending() || left_for_later);
            if core::mem::take(&mut parking.permit) || interrupted || self.process.posted() != seen {
                parking.sleeper = None;
                return Poll::Ready(Ok(0));
            }
            if alarm.is_some() && parking.sleeper.is_none() {
                // A wake-up has taken the waker out.
                return Poll::Ready(Ok(0));
            }
            if deadline.is_some_and(|deadline| Machine::now() >= deadline) {
                parking.sleeper = None;
                return Poll::Ready(Err(Errno::ETIMEDOUT));
            }
            parking.sleeper = Some(cx.waker().clone());
            parking.is_timed = deadline.is_some();
            if alarm.is_none() {
                alarm = Some(deadline.map(|deadline| self.deadline.set(deadline, cx.waker())));
            }
            Poll::Pending
        })
        .await;
        if let Some(Some(alarm)) = alarm {
            time::clear(alarm);
        }
        result
    }
}

impl Owner for Arc<Worker> {
    fn number(&self) -> u32 {
        self.process.id
    }

    /// Returns one more than its slot: so its process finds it by its coroutine.
    fn kind(&self) -> u16 {
        self.index() as u16 + 1
    }

    #[inline(always)]
    fn has_no_claim(&self) -> bool {
        scheduling::has_no_claim(&self.process)
    }

    fn begins(&self) {
        if self.time.taken.load(Ordering::Relaxed) != 0 {
            self.is_back();
        }
        self.time.since.store(payers::mark(), Ordering::Relaxed);
    }

    fn ends(&self) {
        if !self.was_interrupted() {
            self.charge(Machine::now(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{CODE, DATA, run};

    #[test]
    fn a_worker_begins_as_it_was_asked_to_and_others_see_it_end() {
        run(|program| {
            let place = program.place(16);
            let identity = program.identity_for(move |program| {
                program.write(place, &program.given.to_le_bytes());
            });
            assert_eq!(program.call(SystemCall::WorkerCreate, [CODE as usize, DATA, 4711, identity]), Ok(1));
            assert_eq!(program.process().live_workers(), 2);
            program.sleep_ns(1_000_000);
            assert_eq!(program.read_u64(place), 4711);
            assert_eq!(program.process().live_workers(), 1);
        });
    }

    #[test]
    fn workers_are_numbered_in_their_order_and_have_a_limit() {
        run(|program| {
            let word = program.place(8);
            let waits = move |program: &mut crate::testing::Program| {
                while program.read_u32(word) == 0 {
                    let _ = program.call(SystemCall::Futex, [word, 0, 0, 0]);
                }
            };
            for index in 1..process::MAXIMUM_WORKERS {
                assert_eq!(program.add_worker(waits), Ok(index));
            }
            assert_eq!(program.add_worker(waits), Err(Errno::EAGAIN));
            assert_eq!(program.process().live_workers(), process::MAXIMUM_WORKERS);
            program.sleep_ns(1_000_000);
            program.write(word, &[1]);
            program.call(SystemCall::Futex, [word, 1, 1000]).unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(program.process().live_workers(), 1);
            // Indexes are given back; one with a ring is not.
            program.write(word, &[0]);
            let sets_up = |program: &mut crate::testing::Program| {
                program.call(SystemCall::RingSetup, [64, 0]).unwrap();
            };
            assert_eq!(program.add_worker(sets_up), Ok(1));
            program.sleep_ns(1_000_000);
            for round in 0..3 {
                for index in 2..process::MAXIMUM_WORKERS {
                    assert_eq!(program.add_worker(waits), Ok(index), "round {round}");
                }
                assert_eq!(program.add_worker(waits), Err(Errno::EAGAIN));
                program.sleep_ns(1_000_000);
                program.write(word, &[1]);
                program.call(SystemCall::Futex, [word, 1, 1000]).unwrap();
                program.sleep_ns(1_000_000);
                program.write(word, &[0]);
            }
            assert_eq!(program.process().live_workers(), 1);
            for (entry, stack) in [(usize::MAX, DATA), (CODE as usize + 1, DATA), (CODE as usize, usize::MAX)] {
                assert_eq!(program.call(SystemCall::WorkerCreate, [entry, stack, 0, 0]), Err(Errno::EINVAL));
            }
        });
    }

    /// A wake-up that comes before the sleep ends it immediately, and is used up by it; several count as one.
    #[test]
    fn a_wake_up_is_not_lost_and_counts_once() {
        run(|program| {
            let posted = program.process().posted() as usize;
            for _ in 0..2 {
                assert_eq!(program.call(SystemCall::WorkerWake, [0]), Ok(0));
            }
            assert_eq!(program.call(SystemCall::WorkerWait, [posted, usize::MAX]), Ok(0));
            assert_eq!(program.call(SystemCall::WorkerWait, [posted, 1_000_000]), Err(Errno::ETIMEDOUT));
            assert_eq!(program.call(SystemCall::WorkerWait, [posted, 0]), Err(Errno::ETIMEDOUT));
            assert_eq!(program.call(SystemCall::WorkerWait, [posted + 1, usize::MAX]), Ok(0), "there was news");
            assert_eq!(program.call(SystemCall::WorkerWake, [5]), Err(Errno::ESRCH));
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    program.call(SystemCall::WorkerWake, [0]).unwrap();
                })
                .unwrap();
            let begin = Machine::now();
            assert_eq!(program.call(SystemCall::WorkerWait, [posted, usize::MAX]), Ok(0));
            assert!(time::ns_at_ticks(Machine::now() - begin) >= 900_000);
        });
    }
}
