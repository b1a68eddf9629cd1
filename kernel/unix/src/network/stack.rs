//! The network's stack, and the coroutine that handles arrivals from the wire.
//!
//! The stack is one object under one lock. It does all its work within the call and returns the time at which it must
//! be called again. A call's changes are sent before the call returns ([`with_stack_and_send`]). One coroutine, which
//! the device's interrupt wakes, handles arriving frames and expired timers.
//!
//! # Order of frames
//!
//! A frame is as important as the coroutine that waits for it, and its handling is charged to that coroutine's process.
//! So the network coroutine looks at all frames that have come, finds their readers, and takes the most important frame
//! first. Its own priority is the effective priority of the next frame: while something more important is ready, on
//! this hart or another, frames wait, except for later arrivals that are more important. To find these, an interrupt
//! raises the coroutine to the best effective priority of any claim, until it has looked.
//!
//! No frame waits for ever: frames that have waited for as long as the starvation bound go before everything else, a
//! few at a time, and between these few all coroutines as important as the network coroutine have their turn. If
//! waiting frames fill all room, the least important are dropped; their senders may send them again.
//!
//! The network coroutine's other work for a connection (sending data for which acknowledgements have made room, acting
//! on expired timers) is charged to its reader's process too. No process is charged for the looks, nor for frames
//! without a reader: address resolution, echoes, requests that were not acknowledged, ports without a listener.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_unix::Errno;
use hal_api::Machine as _;
use heapless::Vec as FixedVec;
use network::{Error, LocalConnections, Need, Order, Polled, Reader, Stack, Turn, Waiting};
use platform::{Machine, Platform, println};
use spin::{Mutex, MutexGuard};

use crate::network::addressing;
use crate::network::wire::NetworkLink;
use crate::observing::latency;
use crate::process::{Process, accounts, table};
use crate::scheduling::executor::EXHAUSTED;
use crate::scheduling::executor::{self, Cid};
use crate::scheduling::standing::MOST_CLAIM;
use crate::scheduling::{self, Pace, payers, standing};
use crate::time;

/// Programs run for this multiple of the time of a look before the next one, if no frame was worth a program's turn.
/// A flood of such frames takes a sixth of a hart at most, however fast it comes; an important frame behind others
/// waits for some looks longer.
const REST: u64 = 5;
/// Longest look that counts so: beside other work, or in a virtual machine that stood still, it may have taken longer.
const LONGEST_LOOK_NS: u64 = 50_000;
/// Time for which a program as important as the next frame runs before the rest of many frames is handled.
const TURN_OF_EQUALS_NS: u64 = 100_000;
/// Longest wait for the delivery of what closed connections have to send when the machine ends, and the time from one
/// look to the next.
const LONGEST_DELIVERY_NS: u64 = 2_000_000_000;
const DELIVERY_NS: u64 = 1_000_000;
/// Greatest number of frames that may wait for the network coroutine.
const ARRIVALS: usize = 256;
/// Greatest number of processes whose frames are handled in one poll.
const READERS: usize = 8;
/// Greatest number of processes for which anything is done in one poll.
const OWNERS: usize = 16;

/// The stack; `None` before the machine has started, or if there was no memory for it.
pub(crate) static STACK: Mutex<Option<Stack<NetworkLink>>> = Mutex::new(None);
/// Time at which the network coroutine's alarm rings, in nanoseconds; all ones if it is not set. Used under the stack's
/// lock.
static NEXT_ALARM: AtomicU64 = AtomicU64::new(u64::MAX);

/// Set if something has arrived since the network coroutine looked.
// Set with release before the coroutine is woken, and cleared before its look: an arrival that the look misses sets it
// again, and is seen (acquire) before the coroutine waits or becomes less important.
static HAS_ARRIVED: AtomicBool = AtomicBool::new(false);
/// Set, as `HAS_ARRIVED` is, if the network coroutine must look even though it rests.
static MUST_LOOK: AtomicBool = AtomicBool::new(false);
static COROUTINE: Mutex<Option<NetworkCoroutine>> = Mutex::new(None);

/// The coroutine that handles arrivals.
struct NetworkCoroutine {
    cid: Cid,
    /// Set while its priority is that of a waiting frame.
    is_lowered: bool,
    /// Until this time arrivals do not make it look; its alarm does, at this time.
    rests_until: u64,
}

/// Translates the stack's error into the system call's.
pub(crate) fn errno_of(error: Error) -> Errno {
    match error {
        Error::Stale => Errno::EBADF,
        Error::AddressInUse => Errno::EADDRINUSE,
        Error::AddressUnavailable => Errno::EADDRNOTAVAIL,
        Error::Unreachable => Errno::ENETUNREACH,
        Error::HostUnreachable => Errno::EHOSTUNREACH,
        Error::Refused => Errno::ECONNREFUSED,
        Error::Reset => Errno::ECONNRESET,
        Error::Aborted => Errno::ECONNABORTED,
        Error::TimedOut => Errno::ETIMEDOUT,
        Error::NotConnected => Errno::ENOTCONN,
        Error::Closed => Errno::EPIPE,
        Error::TooLong => Errno::EMSGSIZE,
        Error::Limit => Errno::ENOBUFS,
        Error::OutOfMemory => Errno::ENOMEM,
        Error::Invalid => Errno::EINVAL,
    }
}

/// Starts the stack over the first network device, or with the loopback interface alone.
pub(crate) fn start(platform: &'static Platform) {
    let wire = NetworkLink::find(platform, announce_arrival);
    let limits = network::Limits { arrivals: ARRIVALS, ..network::Limits::default() };
    let option = |name| crate::machine::boot_option(platform.arguments, name);
    let address = match wire.is_connected() {
        true => addressing::of_boot_word(option("ip")),
        false => network::Addressing::Nowhere,
    };
    let configuration = network::Configuration {
        address,
        six: match address {
            network::Addressing::Nowhere => network::SixAddressing::Off,
            _ => addressing::six_of_boot_words(option("ipv6.disable"), option("ipv6.autoconf")),
        },
        seeds: network::Seeds::draw(crate::random::bytes),
        local_connections: local_connections(option("local")),
        limits,
        ..network::Configuration::default()
    };
    match Stack::new(wire, &configuration, time::now_ns()) {
        Ok(mut stack) => {
            // ADMISSION: for memory that no call of ours asks for, and for the rings of connections within the host.
            stack.set_admission(|need| match need {
                Need::Call => accounts::has_machine_memory(),
                Need::Packet => accounts::has_memory_for_strangers(),
                Need::Speed => accounts::has_spare_memory(),
            });
            *STACK.lock() = Some(stack);
        }
        Err(error) => println!("network: not available: {error}"),
    }
    let (Ok(times), Ok(turns)) = (time::Reservation::new(), time::Reservation::new()) else {
        println!("network: there is no memory to start it");
        return;
    };
    scheduling::register_frames(restore_arrivals);
    // Not more important than programs that claim everything: looks are charged to no process.
    executor::spawn_for_kernel(MOST_CLAIM, handle_arrivals(times, turns));
}

/// Parses the boot option `local=joined` or `local=packets`: the way in which connections within the host are carried.
fn local_connections(wanted: Option<&str>) -> LocalConnections {
    match wanted {
        None | Some("joined") => LocalConnections::Joined,
        Some("packets") => LocalConnections::Packets,
        Some(other) => {
            println!("network: local={other} is neither joined nor packets; connections within the host are joined");
            LocalConnections::Joined
        }
    }
}

/// Makes the network coroutine look at what the device announces, when its rest is over.
#[doc(alias = "interrupt_mitigation")]
fn announce_arrival() {
    let rests = |coroutine: &NetworkCoroutine| Machine::now() < coroutine.rests_until;
    // Under the lock: a rest that is cut short by other work ends with a look at this flag.
    let coroutine = COROUTINE.lock();
    HAS_ARRIVED.store(true, Ordering::Release);
    if coroutine.as_ref().is_some_and(rests) {
        return;
    }
    drop(coroutine);
    wake_coroutine();
}

/// Makes the network coroutine look at the device and at its deadlines, however unimportant its remaining frames are.
fn wake_coroutine() {
    MUST_LOOK.store(true, Ordering::Release);
    HAS_ARRIVED.store(true, Ordering::Release);
    let mut is_raised = false;
    if let Some(coroutine) = COROUTINE.lock().as_mut() {
        coroutine.rests_until = 0;
        is_raised = core::mem::take(&mut coroutine.is_lowered);
        if is_raised {
            executor::set_priority(coroutine.cid, MOST_CLAIM);
        }
        executor::waker(coroutine.cid).wake();
    }
    // The network coroutine may have been ready already, in the run queue of a hart that visits something less
    // important.
    if is_raised && crate::machine::harts() > 1 {
        executor::find_hart(MOST_CLAIM);
    }
}

/// Wakes the network coroutine at a deadline.
struct StackAlarm;

impl Wake for StackAlarm {
    fn wake(self: Arc<StackAlarm>) {
        wake_coroutine();
    }
}

/// Handles arrivals and deadlines of the stack, for ever.
#[doc(alias = "net_rx_action")]
#[doc(alias = "softirq")]
#[doc(alias = "napi")]
async fn handle_arrivals(times: time::Reservation, turns: time::Reservation) {
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let alarm_waker = Waker::from(Arc::new(StackAlarm));
    *COROUTINE.lock() = Some(NetworkCoroutine { cid: executor::current(), is_lowered: false, rests_until: 0 });
    let mut pace = Pace::default();
    // The alarm for the next deadline, and the time at which it rings. An alarm that rings too early costs a look;
    // setting it costs a little less.
    let mut alarm: Option<(time::Alarm, u64)> = None;
    loop {
        MUST_LOOK.store(false, Ordering::Release);
        HAS_ARRIVED.store(false, Ordering::Release);
        // The look sees everything that the device announced before it; anything later is announced once more.
        fence(Ordering::SeqCst);
        let began = Machine::now();
        let polled = poll();
        let Polled { next, has_work, waiting, oldest, is_stopped, some_are_unseen, .. } = polled;
        let now = Machine::now();
        let next = next.map(time::ticks_at_ns);
        if has_work || next.is_some_and(|next| next <= now) {
            // Segments to be sent and expired timers, of which there are many and each is short: handled in steps.
            let _ = lower(MOST_CLAIM, 0);
            step(&mut pace, &turns, &waker).await;
            continue;
        }
        let is_useless = polled.has_only_looked && (is_stopped || waiting.is_none() && is_anything_ready());
        let rest = is_useless.then(|| now + REST * (now - began).min(time::ticks_at_ns(LONGEST_LOOK_NS)));
        let overdue = oldest.and_then(|oldest| Some(oldest.saturating_add(scheduling::bound_ticks()?)));
        // However unimportant the remaining frames are: at these times the network coroutine goes before everything
        // else.
        if let Some(at) = [next, overdue, rest].into_iter().flatten().min()
            && alarm.as_ref().is_none_or(|(_, rings_at)| at < *rings_at || *rings_at <= now)
        {
            if let Some((alarm, _)) = alarm.take() {
                time::clear(alarm);
            }
            alarm = Some((times.set(at, &alarm_waker), at));
        }
        let worth = match &waiting {
            Some(waiting) => worth_of_waiting(waiting),
            None if is_useless => Some(EXHAUSTED),
            None => Some(MOST_CLAIM),
        };
        let priority = worth.filter(|_| !some_are_unseen || is_useless).unwrap_or(MOST_CLAIM);
        if !lower(priority, rest.unwrap_or(0)) {
            pace.step().await;
        } else if worth.is_none() || polled.is_cut_short && !is_useless {
            step(&mut pace, &turns, &waker).await;
        } else if is_stopped || is_useless {
            executor::yield_now().await;
        } else {
            let mut is_registered = false;
            // The wake-up may have been for a frame that `poll` has seen.
            poll_fn(|_| {
                let is_over = core::mem::replace(&mut is_registered, true) || HAS_ARRIVED.load(Ordering::Acquire);
                if is_over { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }
}

/// Ends a step after which there is more to do. Coroutines as important as the network coroutine, which perhaps wait
/// for frames handled up to now, have their turn first; a program among them runs for a moment, until the alarm
/// interrupts it.
async fn step(pace: &mut Pace, turns: &time::Reservation, waker: &Waker) {
    if !executor::is_ready_at_least(executor::current_priority()) {
        return pace.step().await;
    }
    let turn = turns.set(time::ticks_at_ns(time::now_ns() + TURN_OF_EQUALS_NS), waker);
    executor::yield_now().await;
    time::clear(turn);
}

/// Sets the network coroutine's priority, mostly to that of its remaining frames, and the end of its rest; 0 for none.
/// Returns `false`, and makes it as important as it can be, if something has arrived since it looked and it does not
/// rest, or if it must look in any case.
fn lower(priority: Priority, rests_until: u64) -> bool {
    let mut coroutine = COROUTINE.lock();
    // Under the lock: whoever makes it look sets the flag first, and then raises it.
    let looks_again = if rests_until == 0 { &HAS_ARRIVED } else { &MUST_LOOK }.load(Ordering::Acquire);
    let (priority, rests_until) = if looks_again { (MOST_CLAIM, 0) } else { (priority, rests_until) };
    if let Some(coroutine) = coroutine.as_mut() {
        coroutine.is_lowered = priority != MOST_CLAIM;
        coroutine.rests_until = rests_until;
        if executor::current_priority() != priority {
            executor::set_priority(coroutine.cid, priority);
        }
    }
    !looks_again
}

/// Whether anything else is ready, on any hart.
fn is_anything_ready() -> bool {
    executor::is_ready_at_least(EXHAUSTED) || executor::is_ready_above_anywhere(EXHAUSTED)
}

/// Returns the effective priority of a frame for this reader, as of now.
fn worth(reader: &Reader, process: Option<&Arc<Process>>) -> Priority {
    let level = Priority::saturating(u64::from(reader.level));
    match process {
        Some(process) if scheduling::has_no_claim(process) => EXHAUSTED,
        Some(process) => process.standing.worth(level),
        // The reader's process has ended: the frame has no reader any more.
        None if reader.owner != 0 => standing::worth_of(Priority::saturating(u64::from(Reader::NOBODY.level))),
        None => standing::worth_of(level),
    }
}

/// Returns the effective priority of the next frame, which no other frame exceeds. Returns `None` if the frame must be
/// looked at immediately: it is overdue, or it is before others although its reader has become less important.
fn worth_of_waiting(waiting: &Waiting) -> Option<Priority> {
    let worth = worth(&waiting.reader, table::find(waiting.reader.owner).as_ref());
    (!waiting.is_overdue && standing::claim_worth(worth).number() <= waiting.level).then_some(worth)
}

/// The processes that pay for the frames of one poll, and their amounts.
#[derive(Default)]
struct Bill {
    items: FixedVec<OwnerTime, OWNERS>,
    /// The process that is being worked for, as an index of `items`; the start of that work; and whether everything
    /// else went before it.
    current: Option<(usize, u64, bool)>,
    /// Time at which the card announced the frames of the next look: that of its interrupt for the first look, and for
    /// a later one not before the previous look.
    arrived: u64,
}

struct OwnerTime {
    process: Arc<Process>,
    ticks: u64,
    /// The part of `ticks` in which everything else went before.
    ticks_behind_all: u64,
}

/// The payer of some work.
enum Payer {
    Nobody,
    /// The process at this index of the bill.
    At(usize),
    /// A further process, for which the bill has no room.
    OneTooMany,
}

impl Bill {
    /// Returns the index of this process if fewer than `most` are before it; `Payer::Nobody` if it has ended.
    fn find(&mut self, owner: u32, most: usize) -> Payer {
        if owner == 0 {
            return Payer::Nobody;
        }
        if let Some(place) = self.items.iter().position(|item| item.process.id == owner) {
            return Payer::At(place);
        }
        // Checked before the lookup: the process must not be dropped here, where the stack is locked.
        if self.items.len() >= most {
            return Payer::OneTooMany;
        }
        match table::find(owner) {
            Some(process) => {
                let _ = self.items.push(OwnerTime { process, ticks: 0, ticks_behind_all: 0 });
                Payer::At(self.items.len() - 1)
            }
            None => Payer::Nobody,
        }
    }

    /// Ends the work that was begun.
    fn end(&mut self, now: u64) {
        if let Some((place, since, behind_all)) = self.current.take() {
            let item = &mut self.items[place];
            let ticks = now.saturating_sub(since);
            *if behind_all { &mut item.ticks_behind_all } else { &mut item.ticks } += ticks;
        }
    }

    /// Charges every process of the bill.
    fn settle(&self, now: u64) {
        for OwnerTime { process, ticks, ticks_behind_all } in &self.items {
            for (ticks, behind_all) in [(*ticks, false), (*ticks_behind_all, true)] {
                if ticks != 0 {
                    payers::work_for(process.id);
                    scheduling::charge_for(process, ticks, now, behind_all);
                }
            }
        }
    }
}

impl Order for Bill {
    fn look(&mut self) -> u64 {
        self.end(Machine::now());
        self.arrived
    }

    fn decide(&mut self, waiting: &Waiting) -> Turn {
        let now = Machine::now();
        self.arrived = now;
        let place = match self.find(waiting.reader.owner, READERS) {
            Payer::At(place) => Some(place),
            Payer::Nobody => None,
            Payer::OneTooMany => return Turn::Later,
        };
        let process = place.map(|place| &self.items[place].process);
        if place.is_none() && waiting.reader.owner != 0 && waiting.level < Reader::NOBODY.level {
            return Turn::Behind(Reader::NOBODY.level);
        }
        let mut worth = worth(&waiting.reader, process);
        if let (EXHAUSTED, Some(process)) = (worth, process) {
            process.standing.frames_stand_behind();
            // The budget may have been refilled before `frames_stand_behind`.
            worth = self::worth(&waiting.reader, Some(process));
        }
        // Its reader may have been more important when the frame began to wait.
        let claim = standing::claim_worth(worth).number();
        if waiting.level < claim && (!waiting.is_overdue || worth == EXHAUSTED) {
            return Turn::Behind(claim);
        }
        if !waiting.is_overdue && (executor::is_ready_above(worth) || executor::is_ready_above_anywhere(worth)) {
            return Turn::Stop;
        }
        latency::handles(waiting.arrived);
        self.current = place.map(|place| (place, now, worth == EXHAUSTED && !waiting.is_overdue));
        Turn::Handle
    }

    fn begin(&mut self, reader: Reader) -> bool {
        if self.current.is_some_and(|(place, ..)| self.items[place].process.id == reader.owner) {
            return true;
        }
        let now = Machine::now();
        self.end(now);
        match self.find(reader.owner, OWNERS) {
            Payer::At(place) => {
                // `false` for any effective priority: nothing more important was looked for.
                self.current = Some((place, now, false));
                true
            }
            Payer::Nobody => true,
            Payer::OneTooMany => false,
        }
    }
}

/// Lets the stack do the work that is due. Frames behind more important work are left.
fn poll() -> Polled {
    let mut bill = Bill::default();
    let polled = {
        let mut guard = STACK.lock();
        let Some(stack) = guard.as_mut() else {
            return Polled::default();
        };
        bill.arrived = latency::look_begins();
        if let Some(bound) = scheduling::bound_ticks() {
            stack.boost_arrivals(bill.arrived.saturating_sub(bound));
        }
        let polled = stack.poll_in_order(time::now_ns(), &mut bill);
        latency::look_ends(if polled.some_are_unseen { bill.arrived } else { 0 });
        // Under the lock: a call that needs an earlier time compares with this value and not with the alarm before it.
        NEXT_ALARM.store(polled.next.unwrap_or(u64::MAX), Ordering::Relaxed);
        polled
    };
    // Without the lock: a process that has ended meanwhile may be dropped here with everything it has.
    bill.settle(Machine::now());
    polled
}

/// Moves a process's frames to where their readers' importance puts them, after its budget has been refilled.
fn restore_arrivals(process: u32) {
    if let Some(stack) = STACK.lock().as_mut() {
        stack.restore_arrivals(process);
    }
    wake_coroutine();
}

/// Whether closed connections still deliver something.
pub(crate) fn is_delivering() -> bool {
    STACK.lock().as_mut().is_some_and(Stack::is_delivering)
}

/// Waits until the other sides have what closed connections had to send, but not for long. The end of what the last
/// program has sent would be lost with the machine.
pub(crate) async fn deliver() {
    let Ok(reservation) = time::Reservation::new() else { return };
    let end = time::now_ns() + LONGEST_DELIVERY_NS;
    while is_delivering() && time::now_ns() < end {
        scheduling::sleep_until(&reservation, time::ticks_at_ns(time::now_ns() + DELIVERY_NS)).await;
    }
}

/// Returns the number of TCP connections that exist.
pub(crate) fn connections() -> u64 {
    STACK.lock().as_ref().map_or(0, |stack| stack.connection_counts().0 as u64)
}

/// Uses the stack for a call.
pub(crate) fn with_stack<R>(act: impl FnOnce(&mut Stack<NetworkLink>, u64) -> Result<R, Error>) -> Result<R, Errno> {
    let mut guard = STACK.lock();
    let stack = guard.as_mut().ok_or(Errno::ENETDOWN)?;
    act(stack, time::now_ns()).map_err(errno_of)
}

/// Uses the stack as [`with_stack`] does, and then sends the data that the call has queued; an earlier deadline reaches
/// the network coroutine.
#[doc(alias = "tcp_push")]
pub(crate) fn with_stack_and_send<R>(
    act: impl FnOnce(&mut Stack<NetworkLink>, u64) -> Result<R, Error>,
) -> Result<R, Errno> {
    let mut guard = STACK.lock();
    let stack = guard.as_mut().ok_or(Errno::ENETDOWN)?;
    let now = time::now_ns();
    let result = act(stack, now).map_err(errno_of);
    send(guard, now);
    result
}

/// Uses the stack as [`with_stack_and_send`] does, for a call that brings no deadline without something to be sent.
pub(crate) fn with_stack_to_receive<R>(
    act: impl FnOnce(&mut Stack<NetworkLink>, u64) -> Result<R, Error>,
) -> Result<R, Errno> {
    let mut guard = STACK.lock();
    let stack = guard.as_mut().ok_or(Errno::ENETDOWN)?;
    let now = time::now_ns();
    let result = act(stack, now).map_err(errno_of);
    if stack.has_work() {
        send(guard, now);
    }
    result
}

/// Sends what is queued, and releases the stack.
#[inline(always)]
fn send(mut guard: MutexGuard<'_, Option<Stack<NetworkLink>>>, now: u64) {
    let next = guard.as_mut().and_then(|stack| stack.flush(now)).unwrap_or(u64::MAX);
    let is_earlier = next < NEXT_ALARM.load(Ordering::Relaxed);
    if is_earlier {
        NEXT_ALARM.store(next, Ordering::Relaxed);
    }
    drop(guard);
    if is_earlier {
        wake_coroutine();
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::scheduling as attribute;

    use super::*;
    use crate::testing::{Program, run, simulation};

    /// Starts processes that sleep until they are killed, and lets each come to that.
    fn owners(program: &mut Program, count: usize) -> Vec<Arc<Process>> {
        let owners = (0..count).map(|_| program.spawn(|program| program.sleep_ns(10_000_000_000)).unwrap());
        let owners: Vec<_> = owners.collect();
        program.sleep_ns(1_000_000);
        owners.into_iter().map(|id| table::find(id as u32).unwrap()).collect()
    }

    fn end_all(program: &mut Program, owners: Vec<Arc<Process>>) {
        for owner in owners {
            program.call(SystemCall::Kill, [owner.id as usize, 9]).unwrap();
        }
    }

    /// Returns a frame that has just come for the most important coroutine of a process.
    fn frame(owner: &Process) -> Waiting {
        let reader = Reader { owner: owner.id, level: 0 };
        Waiting { reader, level: 0, arrived: Machine::now(), is_overdue: false }
    }

    #[test]
    fn each_owner_pays_for_its_own_frames() {
        run(|program| {
            let owners = owners(program, 2);
            let before: Vec<_> = owners.iter().map(|owner| owner.standing.charged()).collect();
            let mut bill = Bill::default();
            for (owner, ticks) in [(0, 100), (1, 30), (0, 7)] {
                assert_eq!(bill.decide(&frame(&owners[owner])), Turn::Handle);
                simulation().advance(ticks);
                bill.look();
                // The look itself.
                simulation().advance(1000);
            }
            // Other work for a connection; the same owner's is one piece.
            for _ in 0..2 {
                assert!(bill.begin(Reader { owner: owners[1].id, level: 0 }));
                simulation().advance(5);
            }
            bill.look();
            bill.settle(Machine::now());
            let charged = |owner: usize| owners[owner].standing.charged() - before[owner];
            assert_eq!((charged(0), charged(1)), (107, 40));
            end_all(program, owners);
        });
    }

    #[test]
    fn a_ninth_owner_is_put_off_to_the_next_poll() {
        run(|program| {
            let owners = owners(program, READERS + 1);
            let mut bill = Bill::default();
            let mut turns = |owner: usize| {
                let turn = bill.decide(&frame(&owners[owner]));
                bill.look();
                turn
            };
            for owner in 0..READERS {
                assert_eq!(turns(owner), Turn::Handle);
            }
            assert_eq!(turns(READERS), Turn::Later);
            assert_eq!(turns(0), Turn::Handle, "the bill has this owner");
            assert!(bill.begin(Reader { owner: owners[READERS].id, level: 0 }), "other work has more room");
            assert_eq!(Bill::default().decide(&frame(&owners[READERS])), Turn::Handle);
            end_all(program, owners);
        });
    }

    #[test]
    fn frames_of_an_exhausted_process_go_behind() {
        run(|program| {
            let owners = owners(program, 2);
            let exhausted = &owners[0];
            let (budget, period) = (10_000_000, 10_000_000_000);
            let set = [exhausted.id as usize, attribute::BUDGET as usize, budget, period];
            assert_eq!(program.call(SystemCall::SetScheduling, set), Ok(0));
            let mut bill = Bill::default();
            assert_eq!(bill.decide(&frame(exhausted)), Turn::Handle);
            // The handling takes twice the budget.
            simulation().advance(time::ticks_at_ns(2 * budget as u64));
            bill.look();
            bill.settle(Machine::now());
            let mut bill = Bill::default();
            let mut waiting = frame(exhausted);
            assert_eq!(bill.decide(&waiting), Turn::Behind(EXHAUSTED.number()));
            assert_eq!(bill.decide(&Waiting { is_overdue: true, ..waiting }), Turn::Behind(EXHAUSTED.number()));
            // The watchdog, which the exhaustion has woken, goes first.
            program.sleep_ns(1_000_000);
            assert_eq!(bill.decide(&frame(&owners[1])), Turn::Handle, "only the exhausted process goes behind");
            bill.look();
            // Its turn comes when nothing else is ready.
            waiting.level = EXHAUSTED.number();
            assert_eq!(bill.decide(&waiting), Turn::Handle);
            assert!(bill.current.is_some_and(|(.., behind_all)| behind_all));
            end_all(program, owners);
        });
    }

    #[test]
    fn connections_within_the_host_are_joined_unless_the_command_line_says_otherwise() {
        assert_eq!(local_connections(None), LocalConnections::Joined);
        assert_eq!(local_connections(Some("joined")), LocalConnections::Joined);
        assert_eq!(local_connections(Some("packets")), LocalConnections::Packets);
    }
}
