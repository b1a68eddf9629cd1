//! Order of frames that wait for more important work.

mod wire;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};

use network::{
    Coalescing, ConnectionId, DatagramId, DatagramOptions, Limits, ListenerId, Order, Reader, Turn, Waiting,
};
use wire::{Faults, Net, SECOND, SERVER, receive, send};

/// Connections whose readers have these levels; an owner's number is its place in the list plus one.
fn connected(limits: Limits, levels: &[u8]) -> (Net, ListenerId, Vec<(ConnectionId, ConnectionId)>) {
    let mut net = Net::with_limits(Faults::default(), 1, limits);
    let listener = net.listen(80, 16);
    let pairs: Vec<_> = levels.iter().map(|_| net.pair(listener)).collect();
    for (number, (&level, (_, server))) in levels.iter().zip(&pairs).enumerate() {
        net.server.set_reader(*server, Reader { owner: number as u32 + 1, level });
    }
    for (client, _) in &pairs {
        net.client.set_coalescing(*client, Coalescing::None, net.now).unwrap();
    }
    net.pass(SECOND);
    (net, listener, pairs)
}

/// Lets each client send a byte, in the order of the list, without a poll of the server.
fn burst(net: &mut Net, pairs: &[(ConnectionId, ConnectionId)]) {
    for (client, _) in pairs {
        send(&mut net.client, *client, b"!", net.now).unwrap();
        net.client.poll(net.now);
    }
}

/// Looks once, and decides by a function.
struct Told<D> {
    arrived: u64,
    decide: D,
    /// Readers of the other work, and those refused for now.
    besides: Vec<u32>,
    refused: Option<u32>,
}

impl<D: FnMut(&Waiting) -> Turn> Told<D> {
    fn by(arrived: u64, decide: D) -> Told<D> {
        Told { arrived, decide, besides: vec![], refused: None }
    }
}

impl<D: FnMut(&Waiting) -> Turn> Order for Told<D> {
    fn look(&mut self) -> u64 {
        self.arrived
    }

    fn decide(&mut self, waiting: &Waiting) -> Turn {
        (self.decide)(waiting)
    }

    fn begin(&mut self, reader: Reader) -> bool {
        let begins = self.refused != Some(reader.owner);
        if begins {
            self.besides.push(reader.owner);
        }
        begins
    }
}

/// Polls the server once; returns the owners whose frames `turn` let through.
fn poll(net: &mut Net, arrived: u64, turn: impl Fn(&Waiting) -> Turn) -> (Vec<u32>, network::Polled) {
    let mut order = vec![];
    let mut told = Told::by(arrived, |waiting: &Waiting| {
        let turn = turn(waiting);
        if turn == Turn::Handle {
            order.push(waiting.reader.owner);
        }
        turn
    });
    let polled = net.server.poll_in_order(net.now, &mut told);
    (order, polled)
}

fn up_to(level: u8) -> impl Fn(&Waiting) -> Turn {
    move |waiting| if waiting.is_overdue || waiting.reader.level <= level { Turn::Handle } else { Turn::Stop }
}

#[test]
fn the_most_important_come_first_and_equals_as_they_came() {
    let (mut net, _, pairs) = connected(Limits::default(), &[5, 1, 5, 0, 200]);
    burst(&mut net, &pairs);
    let (order, polled) = poll(&mut net, 1, |_| Turn::Handle);
    assert_eq!(order, [4, 2, 1, 3, 5]);
    assert_eq!((polled.waiting, polled.is_stopped, polled.some_are_unseen), (None, false, false));
    for (_, server) in &pairs {
        let mut got = vec![];
        receive(&mut net.server, *server, &mut got, net.now).unwrap();
        assert_eq!(got, b"!");
    }
}

#[test]
fn a_frame_that_comes_during_a_poll_goes_before_less_important_ones() {
    let (mut net, _, pairs) = connected(Limits::default(), &[7, 7, 3]);
    burst(&mut net, &pairs[..2]);
    // The third frame comes while the first is handled.
    let late = RefCell::new(None);
    {
        let mut client_net = Net::new(Faults::default(), 9);
        core::mem::swap(&mut client_net.client, &mut net.client);
        let (frames, now, third) = (net.to_server.clone(), net.now, pairs[2].0);
        let client = RefCell::new(&mut client_net.client);
        let mut order = vec![];
        let mut told = Told::by(1, |waiting: &Waiting| {
            if late.borrow().is_none() {
                let before = frames.borrow().len();
                let mut client = client.borrow_mut();
                send(&mut client, third, b"!", now).unwrap();
                client.poll(now);
                assert_eq!(frames.borrow().len(), before + 1);
                *late.borrow_mut() = Some(());
            }
            order.push(waiting.reader.owner);
            Turn::Handle
        });
        net.server.poll_in_order(net.now, &mut told);
        assert_eq!(order, [1, 3, 2]);
    }
}

#[test]
fn frames_wait_for_more_important_work_and_are_not_lost() {
    let (mut net, _, pairs) = connected(Limits::default(), &[9, 2]);
    burst(&mut net, &pairs);
    let (order, polled) = poll(&mut net, 7, up_to(4));
    assert_eq!(order, [2]);
    let stopped = Waiting { reader: Reader { owner: 1, level: 9 }, level: 9, arrived: 7, is_overdue: false };
    assert_eq!((polled.waiting, polled.is_stopped, polled.some_are_unseen), (Some(stopped), true, false));
    // Another time, and a later frame goes before it.
    burst(&mut net, &pairs[1..]);
    assert_eq!(poll(&mut net, 8, up_to(4)).0, [2]);
    assert_eq!(poll(&mut net, 9, up_to(9)).0, [1]);
    let mut got = vec![];
    receive(&mut net.server, pairs[0].1, &mut got, net.now).unwrap();
    assert_eq!(got, b"!");
}

#[test]
fn a_reader_that_lost_its_importance_goes_behind() {
    let (mut net, _, pairs) = connected(Limits::default(), &[1, 6]);
    burst(&mut net, &pairs);
    let (order, polled) = poll(&mut net, 1, |waiting| match (waiting.reader.owner, waiting.level) {
        (1, 1) => Turn::Behind(63),
        (_, 63) => Turn::Stop,
        _ => Turn::Handle,
    });
    assert_eq!(order, [2]);
    let behind = Waiting { reader: Reader { owner: 1, level: 1 }, level: 63, arrived: 1, is_overdue: false };
    assert_eq!((polled.waiting, polled.oldest), (Some(behind), Some(1)));
    // It does not go behind others that are no less important, and a poll that always says so does not hang.
    assert_eq!(poll(&mut net, 2, |_| Turn::Behind(3)).1.waiting, None);
    let mut got = vec![];
    receive(&mut net.server, pairs[0].1, &mut got, net.now).unwrap();
    assert_eq!(got, b"!");
}

#[test]
fn a_reader_that_is_important_again_goes_first_again() {
    let (mut net, _, pairs) = connected(Limits::default(), &[1, 1, 6]);
    burst(&mut net, &pairs[..2]);
    let put_behind = |waiting: &Waiting| if waiting.level < 63 { Turn::Behind(63) } else { Turn::Stop };
    assert_eq!(poll(&mut net, 1, put_behind).0, []);
    burst(&mut net, &pairs[2..]);
    // The later one stays behind those that came before.
    burst(&mut net, &pairs[..1]);
    net.server.restore_arrivals(1);
    assert_eq!(poll(&mut net, 2, |_| Turn::Handle).0, [1, 1, 3, 2]);
}

#[test]
fn a_frame_may_be_put_off_to_the_next_poll() {
    let (mut net, _, pairs) = connected(Limits::default(), &[1, 2]);
    burst(&mut net, &pairs);
    let later = |waiting: &Waiting| if waiting.reader.owner == 2 { Turn::Later } else { Turn::Handle };
    let (order, polled) = poll(&mut net, 1, later);
    assert_eq!((order, polled.is_stopped, polled.is_cut_short), (vec![1], false, true));
    assert_eq!(poll(&mut net, 2, |_| Turn::Handle).0, [2]);
}

#[test]
fn an_operation_sends_its_own_segments_and_none_of_others() {
    let (mut net, _, pairs) = connected(Limits::default(), &[1, 2]);
    let queue = |room: &mut [u8]| {
        room[0] = b'?';
        1
    };
    let sent = |net: &mut Net, connection: usize| {
        net.server.tcp_send_with(pairs[connection].1, queue, net.now).unwrap();
        let before = net.to_client.borrow().len();
        (net.server.flush(net.now), net.to_client.borrow().len() - before)
    };
    // The other side does not ask for this one; a refused poll leaves it too.
    net.server.tcp_send_with(pairs[0].1, queue, net.now).unwrap();
    let mut told = Told { refused: Some(1), ..Told::by(1, |_: &Waiting| Turn::Handle) };
    assert!(net.server.poll_in_order(net.now, &mut told).has_work);
    assert_eq!(sent(&mut net, 1), (Some(net.now), 1), "there is more to send at once");
    net.server.poll(net.now);
    assert_eq!(net.to_client.borrow().len(), 2);
}

#[test]
fn to_put_frames_behind_takes_its_time() {
    let (mut net, _, pairs) = connected(Limits::default(), &[1; 12]);
    for _ in 0..10 {
        burst(&mut net, &pairs);
    }
    let mut told = Told::by(1, |_: &Waiting| Turn::Stop);
    net.server.poll_in_order(net.now, &mut told);
    let mut moved = 0;
    let mut told = Told::by(2, |waiting: &Waiting| {
        moved += 1;
        if waiting.level < 63 { Turn::Behind(63) } else { Turn::Stop }
    });
    let polled = net.server.poll_in_order(net.now, &mut told);
    assert_eq!((moved, polled.is_cut_short), (32, true), "the rest comes after others had their turn");
}

#[test]
fn the_order_is_told_the_sender_and_can_postpone_it() {
    let (mut net, _, pairs) = connected(Limits::default(), &[1, 2]);
    for (_, server) in &pairs {
        let queue = |room: &mut [u8]| {
            room[0] = b'?';
            1
        };
        net.server.tcp_send_with(*server, queue, net.now).unwrap();
    }
    let mut told = Told { refused: Some(1), ..Told::by(1, |_: &Waiting| Turn::Handle) };
    let polled = net.server.poll_in_order(net.now, &mut told);
    assert!(!told.besides.contains(&1), "{:?}", told.besides);
    assert!(polled.has_work, "there is more to send");
    let mut told = Told::by(1, |_: &Waiting| Turn::Handle);
    net.server.poll_in_order(net.now, &mut told);
    assert!(told.besides.contains(&1), "{:?}", told.besides);
    net.settle();
    for (client, _) in &pairs {
        let mut got = vec![];
        receive(&mut net.client, *client, &mut got, net.now).unwrap();
        assert_eq!(got, b"?");
    }
}

#[test]
fn a_writer_counts_by_its_level_unless_the_reader_is_more_important() {
    let (mut net, _, pairs) = connected(Limits::default(), &[5]);
    let server = pairs[0].1;
    let reader_after = |net: &mut Net, level| {
        net.server.set_writer(server, Reader { owner: 9, level });
        burst(net, &pairs);
        let readers = readers(net);
        let mut got = vec![];
        receive(&mut net.server, server, &mut got, net.now).unwrap();
        readers
    };
    assert_eq!(reader_after(&mut net, 7), [Reader { owner: 9, level: 7 }], "no task waits for input");
    net.server.register(server, network::Interest::Receive, std::task::Waker::noop()).unwrap();
    assert_eq!(reader_after(&mut net, 8), [Reader { owner: 9, level: 7 }]);
    net.server.register(server, network::Interest::Receive, std::task::Waker::noop()).unwrap();
    assert_eq!(reader_after(&mut net, 3), [Reader { owner: 9, level: 3 }]);
}

#[test]
fn a_flood_of_address_resolution_is_as_important_as_unawaited_frames() {
    let (mut net, _, pairs) = connected(Limits::default(), &[3]);
    let who_has = |from: u8| {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, from, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, from]);
        frame.extend([10, 0, 2, from, 0, 0, 0, 0, 0, 0]);
        frame.extend(SERVER.octets());
        frame.resize(60, 0);
        frame
    };
    for from in 100..120 {
        net.to_server.borrow_mut().push_back(who_has(from));
    }
    burst(&mut net, &pairs);
    let (mut urgent, mut order) = (0, vec![]);
    for _ in 0..4 {
        let mut told = Told::by(1, |waiting: &Waiting| {
            urgent += u32::from(waiting.reader == Reader { owner: 0, level: 0 });
            order.push(waiting.reader.level);
            Turn::Handle
        });
        net.server.poll_in_order(net.now, &mut told);
    }
    assert_eq!(urgent, 16);
    assert!(order.is_sorted() && order.ends_with(&[3, 63, 63, 63, 63]), "{order:?}");
    // Each is answered nevertheless.
    let answers = net.to_client.borrow().iter().filter(|frame| frame[12..14] == [8, 6]).count();
    assert_eq!(answers, 20);
}

#[test]
fn boosted_frames_go_first() {
    let (mut net, _, pairs) = connected(Limits::default(), &[50, 40, 0]);
    burst(&mut net, &pairs[..2]);
    assert_eq!(poll(&mut net, 10, up_to(0)).0, []);
    burst(&mut net, &pairs[2..]);
    net.server.boost_arrivals(10);
    assert_eq!(poll(&mut net, 20, up_to(0)).0, [3], "they came at 10, not before");
    burst(&mut net, &pairs[2..]);
    net.server.boost_arrivals(11);
    assert_eq!(poll(&mut net, 30, up_to(0)).0, [2, 1, 3]);
}

#[test]
fn without_room_the_least_important_are_dropped_and_come_again() {
    let limits = Limits { arrivals: 4, ..Limits::default() };
    let (mut net, _, pairs) = connected(limits, &[9, 9, 8, 9, 9, 2]);
    burst(&mut net, &pairs);
    let before = net.server.counters().arrivals_dropped;
    // Nothing but the last one may be handled, and it has to be seen for that.
    assert_eq!(poll(&mut net, 1, up_to(4)).0, [6]);
    let dropped = net.server.counters().arrivals_dropped - before;
    assert!((1..=3).contains(&dropped), "{dropped}");
    // The other side repeats the dropped segments.
    let mut got = vec![vec![]; pairs.len()];
    net.run_until(60 * SECOND, |net| {
        for ((_, server), got) in pairs.iter().zip(&mut got) {
            let _ = receive(&mut net.server, *server, got, net.now);
        }
        got.iter().all(|got| got == b"!")
    });
}

#[test]
fn no_frame_is_dropped_that_could_be_handled() {
    let limits = Limits { arrivals: 2, ..Limits::default() };
    let (mut net, _, pairs) = connected(limits, &[3; 12]);
    burst(&mut net, &pairs);
    net.settle();
    assert_eq!(net.server.counters().arrivals_dropped, 0);
    for (_, server) in &pairs {
        let mut got = vec![];
        receive(&mut net.server, *server, &mut got, net.now).unwrap();
        assert_eq!(got, b"!");
    }
}

#[test]
fn unwanted_frames_delay_no_reader() {
    let (mut net, _, pairs) = connected(Limits::default(), &[3]);
    burst(&mut net, &pairs);
    // Any number of another protocol.
    for _ in 0..1000 {
        net.to_server.borrow_mut().push_back(vec![0xee; 60]);
    }
    assert_eq!(poll(&mut net, 1, |_| Turn::Handle).0, [1]);
    // And if it comes behind them: in a few polls, each of which looks at some.
    net.settle();
    for _ in 0..40 {
        net.to_server.borrow_mut().push_back(vec![0xee; 60]);
    }
    burst(&mut net, &pairs);
    let polls = (0..10).position(|_| poll(&mut net, 2, |_| Turn::Handle).0 == [1]);
    assert_eq!(polls, Some(5));
}

/// Returns the readers of the waiting frames, in order.
fn readers(net: &mut Net) -> Vec<Reader> {
    let mut readers = vec![];
    let mut told = Told::by(1, |waiting: &Waiting| {
        readers.push(waiting.reader);
        Turn::Handle
    });
    net.server.poll_in_order(net.now, &mut told);
    readers
}

#[test]
fn requests_and_unaccepted_connections_are_as_important_as_their_acceptor() {
    let (mut net, listener, _) = connected(Limits::default(), &[]);
    let acceptor = Reader { owner: 77, level: 6 };
    net.server.set_acceptor(listener, acceptor);
    let client =
        net.client.tcp_connect(None, SocketAddr::new(SERVER.into(), 80), &Default::default(), net.now).unwrap();
    for step in ["asks for the address", "asks", "acknowledges"] {
        net.client.poll(net.now);
        let expected = if step == "asks for the address" { Reader { owner: 0, level: 0 } } else { acceptor };
        assert_eq!(readers(&mut net), [expected], "the client {step}");
    }
    net.client.poll(net.now);
    send(&mut net.client, client, b"!", net.now).unwrap();
    net.client.poll(net.now);
    assert_eq!(readers(&mut net), [acceptor], "a connection in the queue");
    net.client.set_coalescing(client, Coalescing::None, net.now).unwrap();
    let (server, _) = net.server.accept(listener).unwrap().unwrap();
    let reader = Reader { owner: 5, level: 1 };
    net.server.set_reader(server, reader);
    send(&mut net.client, client, b"!", net.now).unwrap();
    net.client.poll(net.now);
    assert_eq!(readers(&mut net), [reader]);
}

#[test]
fn datagrams_are_as_important_as_their_readers_and_unread_ones_the_least() {
    let (mut net, _, _) = connected(Limits::default(), &[]);
    let any = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let options = DatagramOptions::default();
    let server = net.server.udp_bind(any(53), &options).unwrap();
    let reader = Reader { owner: 4, level: 12 };
    net.server.set_datagram_reader(server, reader);
    let client: DatagramId = net.client.udp_bind(any(0), &options).unwrap();
    let say = |net: &mut Net, port| {
        net.client.udp_send_with(client, Some(SocketAddr::new(SERVER.into(), port)), 1, |room| room[0] = 1).unwrap();
        net.client.poll(net.now);
    };
    // The first one asks for the hardware address.
    say(&mut net, 53);
    net.settle();
    for port in [54, 53] {
        say(&mut net, port);
    }
    assert_eq!(readers(&mut net), [reader, Reader::NOBODY]);
    // A task that waits for room counts where none waits for datagrams, or none so important.
    for (is_read, level, counts) in [(false, 20, true), (true, 20, false), (true, 3, true)] {
        net.server.set_datagram_reader(server, reader);
        if is_read {
            net.server.udp_register(server, network::Interest::Receive, std::task::Waker::noop()).unwrap();
        }
        let writer = Reader { owner: 9, level };
        net.server.set_datagram_writer(server, writer);
        say(&mut net, 53);
        assert_eq!(readers(&mut net), [if counts { writer } else { reader }], "{is_read} {level}");
    }
}

#[test]
fn a_poll_that_is_stopped_drops_no_frame() {
    let (mut net, _, pairs) = connected(Limits::default(), &[3, 3]);
    burst(&mut net, &pairs);
    let (handled, polled) = poll(&mut net, 1, |_| Turn::Stop);
    assert_eq!((handled, polled.is_stopped, polled.is_cut_short), (vec![], true, false));
    assert_eq!(polled.waiting.map(|waiting| waiting.reader.owner), Some(1));
    assert_eq!(net.server.counters().arrivals_dropped, 0);
    assert_eq!(poll(&mut net, 2, |_| Turn::Handle).0, [1, 2]);
}

/// Begins this many steps, and no more.
struct Begins(usize);

impl Order for Begins {
    fn look(&mut self) -> u64 {
        0
    }

    fn decide(&mut self, _: &Waiting) -> Turn {
        Turn::Handle
    }

    fn begin(&mut self, _: Reader) -> bool {
        let begins = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        begins
    }
}

/// The other side learns that a connection was given up, also if the holder closes it before the reset was sent.
#[test]
fn a_connection_that_failed_is_reset_after_it_was_closed() {
    let (mut net, _, pairs) = connected(Limits::default(), &[3]);
    let server = pairs[0].1;
    send(&mut net.server, server, b"is anybody there?", net.now).unwrap();
    net.server.poll(net.now);
    net.now += 290 * SECOND;
    // The server must still know the client's hardware address when it gives up.
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let socket = net.client.udp_bind(any, &DatagramOptions::default()).unwrap();
    net.to_client.borrow_mut().clear();
    net.client.udp_send_with(socket, Some(SocketAddr::new(SERVER.into(), 53)), 0, |_| ()).unwrap();
    net.client.poll(net.now);
    net.server.poll(net.now);
    net.to_client.borrow_mut().clear();
    net.now += 11 * SECOND;
    // The timer, and not what follows from it.
    assert!(net.server.poll_in_order(net.now, &mut Begins(1)).has_work);
    assert!(net.server.readiness(server).unwrap().failed);
    net.server.close(server, net.now).unwrap();
    // The server also asks whether the client is still there.
    let drop_questions = |net: &Net| net.to_client.borrow_mut().retain(|frame| frame[12..14] == [8, 0]);
    drop_questions(&net);
    assert!(net.to_client.borrow().is_empty());
    net.server.poll(net.now);
    drop_questions(&net);
    let flags: Vec<_> = net.to_client.borrow().iter().map(|frame| frame[47]).collect();
    assert_eq!(flags.len(), 1);
    assert!(flags[0] & 4 != 0, "{flags:?} is no reset");
    assert_eq!(net.server.connection_counts().0, 0);
}
