//! The network's stack, and the coroutine that handles what arrives from the wire.
//!
//! The stack is one object under one lock; it does everything at once and tells when it wants to be called again. What
//! a call changes is sent before the call returns ([`with_stack_and_send`]). What arrives, and what times expire, one
//! coroutine handles, which the device's interrupt wakes.
//!
//! # In whose order
//!
//! A frame is as important as the coroutine that waits for it, and its handling is charged to that coroutine's process.
//! So the handler looks at all frames that have come, finds out whose they are, and takes the most important first. Its
//! own priority is what the next one is worth: while something more important is ready, on this hart or another, frames
//! wait, but for those that come meanwhile and are more important. To see these an interrupt raises the handler to the
//! best that any claim is worth, until it has looked.
//!
//! Nothing waits for ever: frames that have waited for as long as the starvation bound go before everything else, a few
//! at a time, between which whatever is as important as the handler has its turn. If frames that wait fill all room
//! there is, the least important are dropped, and come again if they are worth it to whoever sent them.
//!
//! What else the handler does for a connection, to send what acknowledgements have made room for and to act on times
//! that have come, is charged to its reader's process too. Charged to nobody are the looks, and what nobody waits for:
//! address resolution, echoes, requests that were not acknowledged, ports where nobody listens.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::future::poll_fn;
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_unix::Errno;
use hal_api::Machine as _;
use heapless::Vec as FixedVec;
use network::{Error, LocalConnections, Order, Polled, Reader, Stack, Turn, Waiting};
use platform::{Machine, Platform, println};
use spin::Mutex;

use crate::network::wire::Wire;
use crate::observing::latency;
use crate::process::{self, Process};
use crate::scheduling::executor::{self, Cid};
use crate::scheduling::{self, EXHAUSTED, MOST_CLAIM, Pace};
use crate::time;

/// For so long a program that is as important as the next frame runs before the rest of many frames is handled.
const TURN_OF_EQUALS_NS: u64 = 100_000;
/// How many frames may wait for the handler.
const ARRIVALS: usize = 256;
/// No more processes than this have frames handled in one poll.
const READERS: usize = 8;
/// For no more processes than this something is done in one poll.
const OWNERS: usize = 16;

/// The stack; `None` before the machine has started, or if there was no memory for one.
pub(crate) static STACK: Mutex<Option<Stack<Wire>>> = Mutex::new(None);
/// When the handler's alarm will ring, in nanoseconds; all ones if it is not set. Used under the stack's lock.
static NEXT_ALARM: AtomicU64 = AtomicU64::new(u64::MAX);

static HAS_ARRIVED: AtomicBool = AtomicBool::new(false);
static HANDLER: Mutex<Option<Handler>> = Mutex::new(None);

/// The coroutine that handles what arrives.
struct Handler {
    cid: Cid,
    /// It has the priority of a frame that waits.
    is_lowered: bool,
}

/// The system call's answer for the stack's.
pub(crate) fn errno_of(error: Error) -> Errno {
    match error {
        Error::Stale => Errno::EBADF,
        Error::AddressInUse => Errno::EADDRINUSE,
        Error::AddressUnavailable => Errno::EADDRNOTAVAIL,
        Error::Unreachable => Errno::ENETUNREACH,
        Error::Refused => Errno::ECONNREFUSED,
        Error::Reset => Errno::ECONNRESET,
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
    let wire = Wire::find(platform, wake_handler);
    let limits = network::Limits { arrivals: ARRIVALS, ..network::Limits::default() };
    let configuration = network::Configuration {
        address: wire.is_connected().then_some(network::Address {
            // QEMU's user network, which has no other way to tell a machine its address than DHCP.
            address: Ipv4Addr::new(10, 0, 2, 15),
            prefix: 24,
            gateway: Some(Ipv4Addr::new(10, 0, 2, 2)),
        }),
        seeds: network::Seeds::draw(crate::random::bytes),
        local_connections: local_connections(crate::boot_option(platform.arguments, "local")),
        limits,
        ..network::Configuration::default()
    };
    match Stack::new(wire, &configuration, time::now_ns()) {
        Ok(mut stack) => {
            // ADMISSION: for what no call of ours asks for, and for the rings of connections within the host.
            stack.set_admission(crate::process::accounts::has_machine_memory);
            *STACK.lock() = Some(stack);
        }
        Err(error) => println!("network: not available: {error}"),
    }
    let (Ok(times), Ok(turns)) = (time::Reservation::new(), time::Reservation::new()) else {
        println!("network: there is no memory to start it");
        return;
    };
    // Not before programs that claim everything: looks are charged to nobody.
    executor::spawn_for_kernel(MOST_CLAIM, handle_arrivals(times, turns));
}

/// How connections within the host are carried, as the boot command line says with `local=joined` or `local=packets`.
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

/// Makes the handler look at the device and at its deadlines, however unimportant the frames are that it has left.
fn wake_handler() {
    HAS_ARRIVED.store(true, Ordering::Release);
    let mut is_raised = false;
    if let Some(handler) = HANDLER.lock().as_mut() {
        is_raised = core::mem::take(&mut handler.is_lowered);
        if is_raised {
            executor::set_priority(handler.cid, MOST_CLAIM);
        }
        executor::waker(handler.cid).wake();
    }
    // It may have been ready, and stand in line on a hart that visits something less important.
    if is_raised && crate::harts() > 1 {
        executor::find_hart(MOST_CLAIM);
    }
}

/// Wakes the handler when a time has come.
struct Alarm;

impl Wake for Alarm {
    fn wake(self: Arc<Alarm>) {
        wake_handler();
    }
}

/// Handles arrivals and deadlines of the stack, for ever.
async fn handle_arrivals(times: time::Reservation, turns: time::Reservation) {
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let alarm_waker = Waker::from(Arc::new(Alarm));
    *HANDLER.lock() = Some(Handler { cid: executor::current(), is_lowered: false });
    let mut pace = Pace::default();
    // The alarm for what comes next, and when it rings. One that rings too early costs a look, and to set it a little
    // less.
    let mut alarm: Option<(time::Alarm, u64)> = None;
    loop {
        HAS_ARRIVED.store(false, Ordering::Release);
        // The look sees all of which the device has told before, or is told of it once more.
        fence(Ordering::SeqCst);
        let Polled { next, has_work, waiting, oldest, is_stopped, some_are_unseen, is_cut_short } = poll();
        let now = Machine::now();
        let next = next.map(time::ticks_at_ns);
        if has_work || next.is_some_and(|next| next <= now) {
            // Segments to be sent and times that have come, which are many together and each a little: in steps.
            let _ = lower(MOST_CLAIM);
            step(&mut pace, &turns, &waker).await;
            continue;
        }
        let overdue = oldest.and_then(|oldest| Some(oldest.saturating_add(scheduling::bound_ticks()?)));
        // However unimportant it is what the handler has left: at these times it goes before everything else.
        if let Some(at) = [next, overdue].into_iter().flatten().min()
            && alarm.as_ref().is_none_or(|(_, rings_at)| at < *rings_at || *rings_at <= now)
        {
            if let Some((alarm, _)) = alarm.take() {
                time::clear(alarm);
            }
            alarm = Some((times.set(at, &alarm_waker), at));
        }
        let worth = waiting.as_ref().map_or(Some(MOST_CLAIM), worth_of_waiting);
        let priority = worth.filter(|_| !some_are_unseen).unwrap_or(MOST_CLAIM);
        if !lower(priority) {
            pace.step().await;
        } else if is_cut_short || worth.is_none() {
            step(&mut pace, &turns, &waker).await;
        } else if is_stopped {
            executor::yield_now().await;
        } else {
            let mut is_registered = false;
            // The wake-up may have been for what `poll` has seen.
            poll_fn(|_| {
                let is_over = core::mem::replace(&mut is_registered, true) || HAS_ARRIVED.load(Ordering::Acquire);
                if is_over { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }
}

/// Ends a step, after which there is more to do. Coroutines that are as important as the handler, and perhaps wait for
/// what has come up to now, have their turn first; a program among them for a moment, until the alarm interrupts it.
async fn step(pace: &mut Pace, turns: &time::Reservation, waker: &Waker) {
    if !executor::is_ready_at_least(executor::current_priority()) {
        return pace.step().await;
    }
    let turn = turns.set(time::ticks_at_ns(time::now_ns() + TURN_OF_EQUALS_NS), waker);
    executor::yield_now().await;
    time::clear(turn);
}

/// Gives the handler a priority, mostly that of what it has left, unless something has arrived since it looked: then
/// `false`.
fn lower(priority: Priority) -> bool {
    let mut handler = HANDLER.lock();
    // Under the lock: whoever makes something arrive says so before, and then raises the handler.
    if HAS_ARRIVED.load(Ordering::Acquire) {
        return false;
    }
    if let Some(handler) = handler.as_mut() {
        handler.is_lowered = priority != MOST_CLAIM;
        if executor::current_priority() != priority {
            executor::set_priority(handler.cid, priority);
        }
    }
    true
}

/// What a frame for this reader is worth now.
fn worth(reader: &Reader, process: Option<&Arc<Process>>) -> Priority {
    let level = Priority::saturating(u64::from(reader.level));
    match process {
        Some(process) if scheduling::has_no_claim(process) => EXHAUSTED,
        Some(process) => process.standing.worth(level),
        // Whoever waited has ended: nobody does any more.
        None if reader.owner != 0 => scheduling::worth_of(Priority::saturating(u64::from(Reader::NOBODY.level))),
        None => scheduling::worth_of(level),
    }
}

/// What the frame is worth that comes next, and no other is worth more; `None` if it is to be looked at at once: it is
/// overdue, or it stands before others although its reader has become less important.
fn worth_of_waiting(waiting: &Waiting) -> Option<Priority> {
    let worth = worth(&waiting.reader, process::find(waiting.reader.owner).as_ref());
    (!waiting.is_overdue && scheduling::claim_worth(worth).number() <= waiting.level).then_some(worth)
}

/// Who pays for the frames of one poll, and how much.
#[derive(Default)]
struct Bill {
    items: FixedVec<Item, OWNERS>,
    /// For whom something is being done, as a place among them, since when, and whether all others went before.
    current: Option<(usize, u64, bool)>,
    /// When the card told of what is found at the next look: at its interrupt, if that is the first, and else not
    /// before the look before.
    arrived: u64,
}

struct Item {
    process: Arc<Process>,
    ticks: u64,
    /// Of these while all others went before.
    ticks_behind_all: u64,
}

/// Who is to pay.
enum Payer {
    Nobody,
    /// The process at this place of the bill.
    At(usize),
    /// Another one, for which there is no place.
    OneTooMany,
}

impl Bill {
    /// The place of the process with this number, if there are fewer than `most` before it; nobody if it has ended.
    fn find(&mut self, owner: u32, most: usize) -> Payer {
        if owner == 0 {
            return Payer::Nobody;
        }
        if let Some(place) = self.items.iter().position(|item| item.process.id == owner) {
            return Payer::At(place);
        }
        // Before it is found: it may not be dropped here, where the stack is locked.
        if self.items.len() >= most {
            return Payer::OneTooMany;
        }
        match process::find(owner) {
            Some(process) => {
                let _ = self.items.push(Item { process, ticks: 0, ticks_behind_all: 0 });
                Payer::At(self.items.len() - 1)
            }
            None => Payer::Nobody,
        }
    }

    /// What was begun is over.
    fn end(&mut self, now: u64) {
        if let Some((place, since, behind_all)) = self.current.take() {
            let item = &mut self.items[place];
            let ticks = now.saturating_sub(since);
            *if behind_all { &mut item.ticks_behind_all } else { &mut item.ticks } += ticks;
        }
    }

    /// Charges everybody.
    fn settle(&self, now: u64) {
        for Item { process, ticks, ticks_behind_all } in &self.items {
            for (ticks, behind_all) in [(*ticks, false), (*ticks_behind_all, true)] {
                if ticks != 0 {
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
            // It may have been refilled before that was said.
            worth = self::worth(&waiting.reader, Some(process));
        }
        // Its reader may have been more important when it began to wait.
        let claim = scheduling::claim_worth(worth).number();
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
                // Whatever it is worth, nothing that is more important was asked.
                self.current = Some((place, now, false));
                true
            }
            Payer::Nobody => true,
            Payer::OneTooMany => false,
        }
    }
}

/// Lets the stack do what is to be done now. Frames that something more important goes before are left.
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
        // Under the lock: a call that wants an earlier time compares with this and not with the alarm before it.
        NEXT_ALARM.store(polled.next.unwrap_or(u64::MAX), Ordering::Relaxed);
        polled
    };
    // Without the lock: a process that has ended meanwhile may be dropped with what it has.
    bill.settle(Machine::now());
    polled
}

/// Has frames for a process stand where its readers' importance puts them: its budget has been refilled.
pub(crate) fn restore_arrivals(process: &Process) {
    if let Some(stack) = STACK.lock().as_mut() {
        stack.restore_arrivals(process.id);
    }
    wake_handler();
}

/// TCP connections that exist.
pub(crate) fn connections() -> u64 {
    STACK.lock().as_ref().map_or(0, |stack| stack.connection_counts().0 as u64)
}

/// Uses the stack for a call, and lets it do at once what the call made necessary.
pub(crate) fn with_stack<R>(act: impl FnOnce(&mut Stack<Wire>, u64) -> Result<R, Error>) -> Result<R, Errno> {
    let mut guard = STACK.lock();
    let stack = guard.as_mut().ok_or(Errno::ENETDOWN)?;
    act(stack, time::now_ns()).map_err(errno_of)
}

/// As [`with_stack`], and then sends what the call left to be sent; an earlier deadline reaches the handler.
pub(crate) fn with_stack_and_send<R>(act: impl FnOnce(&mut Stack<Wire>, u64) -> Result<R, Error>) -> Result<R, Errno> {
    let mut guard = STACK.lock();
    let stack = guard.as_mut().ok_or(Errno::ENETDOWN)?;
    let now = time::now_ns();
    let result = act(stack, now).map_err(errno_of);
    let next = stack.flush(now).unwrap_or(u64::MAX);
    let is_earlier = next < NEXT_ALARM.load(Ordering::Relaxed);
    if is_earlier {
        NEXT_ALARM.store(next, Ordering::Relaxed);
    }
    drop(guard);
    if is_earlier {
        wake_handler();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_within_the_host_are_joined_unless_the_command_line_says_otherwise() {
        assert_eq!(local_connections(None), LocalConnections::Joined);
        assert_eq!(local_connections(Some("joined")), LocalConnections::Joined);
        assert_eq!(local_connections(Some("packets")), LocalConnections::Packets);
    }
}
