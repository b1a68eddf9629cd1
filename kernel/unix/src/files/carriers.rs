//! Carriers: local sockets with messages that have other local sockets in them (`SCM_RIGHTS`), and the collection of
//! those that nothing but each other's messages holds.
//!
//! # The problem
//!
//! A socket that waits in a message is open, and so is all that waits in its own messages. Two that wait in each
//! other's messages, or one in its own, would be open for ever when no descriptor leads to them any more: the counts of
//! their references never come down. Such sockets must be found; programs may make them (unix(7)).
//!
//! # The choice
//!
//! A collection looks at the carriers of the machine, in steps. A carrier with references from elsewhere than messages
//! (descriptors, calls in flight) is *held*. First each is examined: those that are held become *gray*, the others
//! *candidates*. Then each gray one becomes *settled*, and all carriers in its messages become gray, a few in each
//! step. When there are neither unexamined nor gray ones, the candidates are garbage: their messages are thrown away,
//! and with these the sockets go like any others.
//!
//! Programs go on between the steps. So a carrier that is sent, received or looked at (`MSG_PEEK`) becomes gray too if
//! it was unexamined or a candidate (GRAY-IF-MOVED), and a new carrier is settled. A candidate had no reference but
//! from messages when it was examined, and a reference of another kind comes only of one of that kind, or of receiving
//! it. So at the end nothing leads to a candidate, and nothing ever will.
//!
//! A collection begins when a carrier has lost its last reference from elsewhere: that of a descriptor, or of a message
//! that was not received or was thrown away. A socket without sockets in its messages is in no circle, so that programs
//! which send sockets and close them cause none. It is a [remain](crate::files::remains) of the process that has let
//! the carrier go. Its length is that of the list of carriers, and so bounded by the files that processes may have in
//! messages. If another is wanted meanwhile, that is a remain of its own, for which earlier callers do not wait.
//!
//! References of calls in flight, of a poll or of an epoll go without a word. So each carrier that was held when it was
//! last seen is *looked at* again, a few in turn ([`look_around`]): when a call that had to wait is over, when sockets
//! are made; all of them when a process that has had sockets in messages ends, and before the OOM killer
//! chooses a process. One that has come to be held by messages alone has a collection begin, once. New garbage needs
//! new messages, so that no more comes to be than the looks find.
//!
//! Closed sockets go through the same list: their messages are thrown away here, a few in each step, and never by the
//! end of the socket itself. So a chain of sockets, each in a message of the one before, is closed without recursion,
//! and closing one needs no memory.
//!
//! # Rejected
//!
//! *Sending sockets in one direction of an order only*, so that no cycles come to be, was the rule before: servers that
//! send each worker the channels of all others were refused. *A collection at once, under a lock*, as Linux's: it takes
//! as long as a hostile process likes. *A search from the closed socket only*: it must count references within the
//! part that it finds, while that changes.
//!
//! # Locks
//!
//! [`GRAPH`] comes inside the lock of a queue of messages. A [`CarrierPlace`] is locked under it alone.

use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::mem::{replace, take};
use core::sync::atomic::{AtomicUsize, Ordering};

use spin::{Mutex, MutexGuard};

use crate::files::remains::{self, Remain};
use crate::scheduling::payers;

/// Carriers that are examined in one step.
const EXAMINED_AT_ONCE: usize = 32;

/// The receiving side of a local socket, which may be in messages and have messages.
pub(crate) trait MessageCarrier: Send + Sync {
    /// Returns its place among the carriers.
    fn place(&self) -> &CarrierPlace;

    /// Returns the process that pays for work with it.
    fn maker(&self) -> u32;

    /// Passes on some of the carriers in its messages, from a place on; returns the place of the others.
    fn pass_some_carried(&self, from: CarriedPlace, pass: &mut dyn FnMut(&dyn MessageCarrier)) -> Option<CarriedPlace>;

    /// Ends receiving: there will be no further message.
    fn give_up(&self);

    /// Throws a few of the messages away, of a carrier that has ended receiving; returns whether none is left.
    fn throw_some_away(&self) -> bool;
}

/// The place of a file in the messages of a carrier. Receiving messages does not change it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CarriedPlace {
    /// Number of messages before it since the carrier was made.
    pub message: u64,
    /// Number of files before it in its message.
    pub file: usize,
}

/// The lists of carriers. The settled ones of a collection are the unexamined ones of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CarrierList {
    Even,
    Odd,
    Candidates,
    Gray,
    /// Those whose messages are thrown away.
    Ended,
}

const LISTS: usize = 5;

/// The place of a socket among the carriers.
#[derive(Default)]
pub(crate) struct CarrierPlace(Mutex<Links>);

#[derive(Default)]
struct Links {
    /// The list that it is in, and its neighbours there.
    list: Option<CarrierList>,
    previous: Option<Arc<dyn MessageCarrier>>,
    next: Option<Arc<dyn MessageCarrier>>,
    /// Number of carriers in its messages.
    carried: usize,
    /// Number of messages that have it.
    in_messages: usize,
    /// Something else than messages may have held it since it was last seen to be held by messages alone.
    may_be_held: bool,
    /// Its open file, while it is in messages.
    file: Option<Weak<dyn Any + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No collection is going on.
    Rest,
    Marking,
    /// The candidates are garbage.
    Ending,
}

struct Graph {
    /// The first carrier of each list.
    heads: [Option<Arc<dyn MessageCarrier>>; LISTS],
    phase: Phase,
    /// The list of settled carriers.
    settled: CarrierList,
    /// The settled carrier of which some messages have been looked at, and the place of the others.
    settling: Option<(Arc<dyn MessageCarrier>, CarriedPlace)>,
    /// The next one to be looked at, while no collection is going on; `None` is the first one.
    next_look: Option<Arc<dyn MessageCarrier>>,
    /// A collection is to begin, for the sake of what was left at this [birth](remains::birth).
    wanted: Option<u64>,
    /// There is a [`Collector`].
    is_attended: bool,
    /// The process that has wanted a collection last. It pays for the rest of one at most.
    payer: u32,
}

static GRAPH: Mutex<Graph> = Mutex::new(Graph::new());
/// Number of carriers in lists, to see without a lock that there are none.
// Relaxed: changed under the lock. A reader that has let a socket go has seen that it was a carrier.
static CARRIERS: AtomicUsize = AtomicUsize::new(0);

impl Graph {
    const fn new() -> Graph {
        Graph {
            heads: [const { None }; LISTS],
            phase: Phase::Rest,
            settled: CarrierList::Even,
            settling: None,
            next_look: None,
            wanted: None,
            is_attended: false,
            payer: 0,
        }
    }

    fn unexamined(&self) -> CarrierList {
        if self.settled == CarrierList::Even { CarrierList::Odd } else { CarrierList::Even }
    }

    fn first(&self, list: CarrierList) -> Option<Arc<dyn MessageCarrier>> {
        self.heads[list as usize].clone()
    }

    fn link(&mut self, carrier: Arc<dyn MessageCarrier>, list: CarrierList) {
        let second = self.heads[list as usize].take();
        if let Some(second) = &second {
            second.place().0.lock().previous = Some(carrier.clone());
        }
        {
            let mut links = carrier.place().0.lock();
            links.list = Some(list);
            links.next = second;
        }
        self.heads[list as usize] = Some(carrier);
        CARRIERS.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a carrier out of its list, if it is in one.
    fn unlink(&mut self, carrier: &dyn MessageCarrier) -> Option<Arc<dyn MessageCarrier>> {
        let (list, previous, next) = {
            let mut links = carrier.place().0.lock();
            (links.list.take()?, links.previous.take(), links.next.take())
        };
        if let Some(next) = &next {
            next.place().0.lock().previous = previous.clone();
        }
        CARRIERS.fetch_sub(1, Ordering::Relaxed);
        if self.next_look.as_ref().is_some_and(|other| core::ptr::addr_eq(&raw const **other, carrier)) {
            self.next_look = next.clone();
        }
        match previous {
            Some(previous) => replace(&mut previous.place().0.lock().next, next),
            None => replace(&mut self.heads[list as usize], next),
        }
    }

    fn move_to(&mut self, carrier: &dyn MessageCarrier, list: CarrierList) {
        if let Some(carrier) = self.unlink(carrier) {
            self.link(carrier, list);
        }
    }

    /// Notes that something else than messages may hold a carrier, and keeps it and all in its messages from being
    /// garbage of the present collection.
    fn may_be_held(&mut self, carrier: &dyn MessageCarrier) {
        carrier.place().0.lock().may_be_held = true;
        self.make_gray(carrier);
    }

    fn make_gray(&mut self, carrier: &dyn MessageCarrier) {
        if self.phase == Phase::Marking {
            let list = carrier.place().0.lock().list;
            if list == Some(CarrierList::Candidates) || list == Some(self.unexamined()) {
                self.move_to(carrier, CarrierList::Gray);
            }
        }
    }
}

/// Notes that a message to `receiver` has this socket, whose open file is `file`.
pub(super) fn is_sent<F: Any + Send + Sync>(
    receiver: &Arc<impl MessageCarrier + 'static>,
    carried: &dyn MessageCarrier,
    file: &Arc<F>,
) {
    let file: Weak<F> = Arc::downgrade(file);
    let mut graph = GRAPH.lock();
    {
        let mut links = carried.place().0.lock();
        links.in_messages += 1;
        links.file = Some(file);
    }
    graph.may_be_held(carried);
    let is_new = {
        let mut links = receiver.place().0.lock();
        links.carried += 1;
        links.may_be_held |= links.list.is_none();
        links.list.is_none()
    };
    if is_new {
        let settled = graph.settled;
        graph.link(receiver.clone(), settled);
    }
}

/// The end of a socket in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Received,
    ThrownAway,
}

/// Notes that a message to `receiver` with this socket is none any more.
pub(super) fn is_carried_no_more(receiver: &dyn MessageCarrier, carried: &dyn MessageCarrier, fate: Fate) {
    let mut graph = GRAPH.lock();
    let file = {
        let mut links = carried.place().0.lock();
        links.in_messages -= 1;
        // The list of files that were received or are to be closed does.
        links.may_be_held = true;
        if links.in_messages == 0 { links.file.take() } else { None }
    };
    if fate == Fate::Received {
        graph.make_gray(carried);
    }
    let is_last = {
        let mut links = receiver.place().0.lock();
        links.carried -= 1;
        links.carried == 0 && links.list.is_some_and(|list| list != CarrierList::Ended)
    };
    let unlinked = if is_last { graph.unlink(receiver) } else { None };
    drop(graph);
    drop((file, unlinked));
}

/// Notes that a socket in a message is open for another reason too.
pub(super) fn is_seen(carried: &dyn MessageCarrier) {
    GRAPH.lock().may_be_held(carried);
}

/// Has the messages of a socket thrown away that has ended receiving.
pub(super) fn ends(carrier: &Arc<impl MessageCarrier + 'static>) {
    let mut graph = GRAPH.lock();
    let carrier: Arc<dyn MessageCarrier> = match graph.unlink(&**carrier) {
        Some(carrier) => carrier,
        None => carrier.clone(),
    };
    graph.link(carrier, CarrierList::Ended);
    attend(graph);
}

/// Returns the number of looks after which [`look_around`] has been at all carriers.
pub(crate) fn looks_at_all() -> usize {
    CARRIERS.load(Ordering::Relaxed).div_ceil(EXAMINED_AT_ONCE)
}

/// Looks at a few carriers, in turn; returns whether one has come to be held by messages alone, so that a collection
/// begins. `payer` pays for that, 0 for the maker.
#[inline]
pub(crate) fn look_around(payer: u32) -> bool {
    CARRIERS.load(Ordering::Relaxed) != 0 && look_at_some(payer)
}

#[cold]
#[inline(never)]
fn look_at_some(payer: u32) -> bool {
    let mut graph = GRAPH.lock();
    if graph.phase != Phase::Rest {
        // Most are examined just now. Of the others, later looks find those that are held no more.
        return false;
    }
    for _ in 0..EXAMINED_AT_ONCE {
        let settled = graph.settled;
        let Some(carrier) = graph.next_look.take().or_else(|| graph.first(settled)) else { break };
        let has_been_let_go = {
            let mut links = carrier.place().0.lock();
            graph.next_look = links.next.clone();
            links.is_let_go()
        };
        if has_been_let_go {
            want(graph, if payer == 0 { carrier.maker() } else { payer });
            return true;
        }
        if graph.next_look.is_none() {
            break;
        }
    }
    false
}

/// Has another collection follow if one is going on, in which none can be looked at.
pub(crate) fn look_after_collection(payer: u32) {
    if CARRIERS.load(Ordering::Relaxed) != 0 {
        let graph = GRAPH.lock();
        if graph.phase != Phase::Rest {
            want(graph, payer);
        }
    }
}

/// Looks at all carriers, for a machine without memory; returns whether a collection begins.
pub(crate) fn look_at_all(payer: u32) -> bool {
    (0..=looks_at_all()).any(|_| look_around(payer))
}

/// Looks around when it is dropped, after what may have held a carrier.
pub(crate) struct LookAround;

impl Drop for LookAround {
    #[inline]
    fn drop(&mut self) {
        if CARRIERS.load(Ordering::Relaxed) != 0 {
            look_at_some(payers::present());
        }
    }
}

/// A reference to a socket that was ever in a message. When this is dropped, after the reference, garbage is looked for
/// if only messages hold the socket now.
pub(crate) struct ReferenceToSent {
    carrier: Arc<dyn MessageCarrier>,
    payer: u32,
}

impl ReferenceToSent {
    /// Creates one for this socket, at the expense of the process that the hart works for when it is dropped.
    pub(super) fn new(carrier: Arc<impl MessageCarrier + 'static>) -> ReferenceToSent {
        ReferenceToSent { carrier, payer: 0 }
    }

    /// Has this process pay.
    pub(super) fn paid_by(mut self, payer: u32) -> ReferenceToSent {
        self.payer = payer;
        self
    }
}

impl Drop for ReferenceToSent {
    #[cold]
    fn drop(&mut self) {
        let graph = GRAPH.lock();
        if self.carrier.place().0.lock().is_let_go() {
            let payer = [self.payer, payers::present()].into_iter().find(|payer| *payer != 0);
            want(graph, payer.unwrap_or_else(|| self.carrier.maker()));
        }
    }
}

impl Links {
    /// Returns whether it has come to be held by messages alone since it was last seen to be so.
    fn is_let_go(&mut self) -> bool {
        self.may_be_held && self.carried > 0 && !is_held(self) && replace(&mut self.may_be_held, false)
    }
}

/// Returns whether something else than messages holds a socket.
fn is_held(links: &Links) -> bool {
    // A weak reference is no one of these.
    links.file.as_ref().is_none_or(|file| file.strong_count() > links.in_messages)
}

/// Has a collection begin.
fn want(mut graph: MutexGuard<'_, Graph>, payer: u32) {
    let birth = remains::birth();
    graph.wanted = Some(graph.wanted.map_or(birth, |other| other.min(birth)));
    graph.payer = payer;
    attend(graph);
}

fn attend(mut graph: MutexGuard<'_, Graph>) {
    let was_attended = replace(&mut graph.is_attended, true);
    drop(graph);
    if was_attended {
        // It may be behind for the sake of another payer.
        remains::look_behind();
    } else {
        remains::leave(Collector);
    }
}

/// The work with the lists. There is one, so that steps come one after the other.
struct Collector;

impl Remain for Collector {
    /// Returns the maker of the socket whose messages are thrown away next, or else the process that has wanted a
    /// collection.
    fn owner(&self) -> Option<u32> {
        let graph = GRAPH.lock();
        Some(graph.heads[CarrierList::Ended as usize].as_ref().map_or(graph.payer, |ended| ended.maker()))
    }

    fn step(&mut self) -> bool {
        match work() {
            Work::More => false,
            Work::Another(birth) => {
                remains::leave_as(birth, Collector);
                true
            }
            Work::Nothing => true,
        }
    }
}

/// The work that there is after a step of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    More,
    /// Another collection, for the sake of what was left at this birth.
    Another(u64),
    Nothing,
}

/// Does a step of the work with the lists.
fn work() -> Work {
    let mut graph = GRAPH.lock();
    if let Some(ended) = graph.first(CarrierList::Ended) {
        drop(graph);
        let is_empty = ended.throw_some_away();
        let unlinked = if is_empty { GRAPH.lock().unlink(&*ended) } else { None };
        drop((unlinked, ended));
        return Work::More;
    }
    match graph.phase {
        Phase::Rest => {
            if take(&mut graph.wanted).is_none() {
                graph.is_attended = false;
                return Work::Nothing;
            }
            graph.settled = graph.unexamined();
            graph.phase = Phase::Marking;
            graph.next_look = None;
        }
        Phase::Marking => mark(graph),
        Phase::Ending => match graph.first(CarrierList::Candidates) {
            Some(garbage) => {
                graph.move_to(&*garbage, CarrierList::Ended);
                drop(graph);
                garbage.give_up();
            }
            None => {
                graph.phase = Phase::Rest;
                return graph.wanted.map_or(Work::More, Work::Another);
            }
        },
    }
    Work::More
}

/// Does a step of finding the carriers to which something leads.
fn mark(mut graph: MutexGuard<'_, Graph>) {
    let unexamined = graph.unexamined();
    for number in 0..EXAMINED_AT_ONCE {
        let Some(carrier) = graph.first(unexamined) else {
            if number == 0 {
                break;
            }
            return;
        };
        let is_held = {
            let mut links = carrier.place().0.lock();
            links.may_be_held = is_held(&links);
            links.may_be_held
        };
        graph.move_to(&*carrier, if is_held { CarrierList::Gray } else { CarrierList::Candidates });
        // Not the last reference: it is in a list.
        drop(carrier);
    }
    if graph.first(unexamined).is_some() {
        return;
    }
    let (carrier, from) = match (graph.settling.take(), graph.first(CarrierList::Gray)) {
        (Some(settling), _) => settling,
        (None, Some(gray)) => {
            // Settled before its messages are looked at: what is sent to it meanwhile is gray already, and so is what
            // is received of those that are left for the next step.
            let settled = graph.settled;
            graph.move_to(&*gray, settled);
            (gray, CarriedPlace::default())
        }
        (None, None) => {
            graph.phase = Phase::Ending;
            return;
        }
    };
    drop(graph);
    // The lock of its messages comes before that of the graph, which is held from the first carrier among them on.
    let mut graph = None;
    let rest = carrier
        .pass_some_carried(from, &mut |carried| graph.get_or_insert_with(|| GRAPH.lock()).make_gray(carried))
        .map(|rest| (carrier, rest));
    drop(graph);
    if rest.is_some() {
        GRAPH.lock().settling = rest;
    }
}

/// Returns the process that pays for collections.
#[cfg(test)]
pub(super) fn payer() -> u32 {
    GRAPH.lock().payer
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A socket of the model: its messages have one socket each.
    struct Socket {
        number: usize,
        place: CarrierPlace,
        messages: Mutex<VecDeque<Arc<Opened>>>,
        /// Number of messages that it has no more.
        gone: AtomicUsize,
        has_ended: AtomicUsize,
    }

    /// Its open file.
    struct Opened {
        socket: Arc<Socket>,
        open: Arc<AtomicUsize>,
    }

    impl Drop for Opened {
        fn drop(&mut self) {
            self.socket.has_ended.store(1, Ordering::Relaxed);
            self.open.fetch_sub(1, Ordering::Relaxed);
            if !self.socket.messages.lock().is_empty() {
                ends(&self.socket);
            }
        }
    }

    impl MessageCarrier for Socket {
        fn place(&self) -> &CarrierPlace {
            &self.place
        }

        fn maker(&self) -> u32 {
            7
        }

        fn pass_some_carried(
            &self,
            from: CarriedPlace,
            pass: &mut dyn FnMut(&dyn MessageCarrier),
        ) -> Option<CarriedPlace> {
            let messages = self.messages.lock();
            let gone = self.gone.load(Ordering::Relaxed);
            let next = (from.message as usize).max(gone);
            pass(&*messages.get(next - gone)?.socket);
            Some(CarriedPlace { message: next as u64 + 1, file: 0 })
        }

        fn give_up(&self) {
            self.has_ended.store(1, Ordering::Relaxed);
        }

        fn throw_some_away(&self) -> bool {
            let Some(file) = self.messages.lock().pop_front() else { return true };
            self.gone.fetch_add(1, Ordering::Relaxed);
            is_carried_no_more(self, &*file.socket, Fate::ThrownAway);
            let sent = ReferenceToSent::new(file.socket.clone());
            drop(file);
            drop(sent);
            false
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Action {
        /// Sends one socket to another.
        Send(usize, usize),
        Receive(usize),
        /// Looks at a message, and closes what it has after other actions.
        Peek(usize),
        Close(usize),
        /// Drops a reference without a word, as a call does.
        Forget(usize),
        LookAround,
        Work,
    }

    const SOCKETS: usize = 6;

    fn action() -> impl Strategy<Value = Action> {
        let socket = || 0..SOCKETS;
        prop_oneof![
            3 => (socket(), socket()).prop_map(|(to, which)| Action::Send(to, which)),
            2 => socket().prop_map(Action::Receive),
            1 => socket().prop_map(Action::Peek),
            2 => socket().prop_map(Action::Close),
            1 => socket().prop_map(Action::Forget),
            1 => Just(Action::LookAround),
            6 => Just(Action::Work),
        ]
    }

    /// Returns which sockets the held ones lead to.
    fn reachable(sockets: &[Arc<Socket>], held: &[Vec<Arc<Opened>>]) -> [bool; SOCKETS] {
        let mut found: [bool; SOCKETS] = core::array::from_fn(|number| !held[number].is_empty());
        for _ in 0..SOCKETS {
            for number in (0..SOCKETS).filter(|number| found[*number]).collect::<Vec<_>>() {
                sockets[number].messages.lock().iter().for_each(|file| found[file.socket.number] = true);
            }
        }
        found
    }

    proptest! {
        #![proptest_config(property::cases(512))]

        /// Between any two steps of collections sockets are sent, received, looked at and closed: none that can be
        /// reached ever ends, and in the end none is left.
        #[test]
        fn what_can_be_reached_stays_and_the_rest_goes(actions in prop::collection::vec(action(), 0..120)) {
            let _guard = crate::testing::alone();
            let simulation = hal_host::Simulation::new();
            let _hart = simulation.attach(0);
            // An earlier case may have failed.
            *GRAPH.lock() = Graph { is_attended: true, ..Graph::new() };
            CARRIERS.store(0, Ordering::Relaxed);
            let open = Arc::new(AtomicUsize::new(SOCKETS));
            let sockets: Vec<_> = (0..SOCKETS)
                .map(|number| {
                    let (messages, gone) = (Mutex::new(VecDeque::new()), AtomicUsize::new(0));
                    let (place, has_ended) = (CarrierPlace::default(), AtomicUsize::new(0));
                    Arc::new(Socket { number, place, messages, gone, has_ended })
                })
                .collect();
            let mut held: Vec<_> = sockets
                .iter()
                .map(|socket| vec![Arc::new(Opened { socket: socket.clone(), open: open.clone() })])
                .collect();
            let work = || {
                let is_done = super::work() == Work::Nothing;
                GRAPH.lock().is_attended = true;
                is_done
            };
            for action in actions {
                match action {
                    Action::Send(to, which) => {
                        let receiver = &sockets[to];
                        if let Some(file) = held[which].last()
                            && receiver.has_ended.load(Ordering::Relaxed) == 0
                        {
                            let mut messages = receiver.messages.lock();
                            messages.push_back(file.clone());
                            is_sent(receiver, &*file.socket, file);
                        }
                    }
                    Action::Receive(from) if !held[from].is_empty() => {
                        let mut messages = sockets[from].messages.lock();
                        if let Some(file) = messages.pop_front() {
                            sockets[from].gone.fetch_add(1, Ordering::Relaxed);
                            is_carried_no_more(&*sockets[from], &*file.socket, Fate::Received);
                            held[file.socket.number].push(file);
                        }
                    }
                    Action::Peek(from) if !held[from].is_empty() => {
                        let messages = sockets[from].messages.lock();
                        if let Some(file) = messages.front() {
                            held[file.socket.number].push(file.clone());
                            is_seen(&*file.socket);
                        }
                    }
                    Action::Close(which) => {
                        let sent = ReferenceToSent::new(sockets[which].clone());
                        drop(held[which].pop());
                        drop(sent);
                    }
                    Action::Forget(which) => drop(held[which].pop()),
                    Action::LookAround => {
                        look_around(7);
                    }
                    Action::Work => {
                        work();
                    }
                    _ => {}
                }
                for (socket, is_reachable) in sockets.iter().zip(reachable(&sockets, &held)) {
                    prop_assert!(!is_reachable || socket.has_ended.load(Ordering::Relaxed) == 0, "{}", socket.number);
                }
            }
            let mut is_reachable = reachable(&sockets, &held);
            for _ in 0..2 {
                let mut steps = 0;
                loop {
                    while !work() {
                        steps += 1;
                        prop_assert!(steps < 10_000, "it comes to an end");
                    }
                    if !look_at_all(7) {
                        break;
                    }
                }
                let count = is_reachable.into_iter().filter(|is_so| *is_so).count();
                prop_assert_eq!(open.load(Ordering::Relaxed), count);
                for (files, socket) in held.iter_mut().zip(&sockets) {
                    let sent = (socket.number % 2 == 0).then(|| ReferenceToSent::new(socket.clone()));
                    files.clear();
                    drop(sent);
                }
                is_reachable = [false; SOCKETS];
            }
            prop_assert_eq!(CARRIERS.load(Ordering::Relaxed), 0);
            GRAPH.lock().is_attended = false;
        }
    }
}
