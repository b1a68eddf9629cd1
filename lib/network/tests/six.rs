//! IPv6 on the wire: addresses by routers' advertisements, neighbours, TCP and UDP, and liars.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use network::{
    Addressing, Configuration, ConnectionId, DatagramId, DatagramOptions, Error, LocalEnd, Received, Sent, Sharing,
    SixAddressing, TcpOptions,
};
use proptest::prelude::*;

mod wire;
use wire::{Faults, MILLISECOND, Net, Random, SECOND, receive, send};

const ROUTER: &str = "fe80::ff:fe00:2";
const SERVER: &str = "fe80::ff:fe00:f";
const CLIENT: &str = ROUTER;

fn address(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn end(text: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address(text).into(), port)
}

fn configuration(six: SixAddressing) -> Configuration {
    Configuration { address: Addressing::Nowhere, six, ..Configuration::default() }
}

/// Two hosts with their link-local addresses.
fn net(faults: Faults, seed: u64) -> Net {
    let mut net = Net::configured(faults, seed, [SixAddressing::LinkLocal; 2].map(configuration));
    net.pass(3 * SECOND);
    net
}

/// A server that hears advertisements, and whose network is this test.
fn hearing() -> Net {
    let mut net =
        Net::configured(Faults::default(), 1, [configuration(SixAddressing::Automatic), Configuration::default()]);
    pass(&mut net, 3 * SECOND);
    net.to_client.borrow_mut().clear();
    net
}

/// Lets the server alone work, and returns what it has sent.
fn pass(net: &mut Net, time: u64) -> Vec<Vec<u8>> {
    let end = net.now + time;
    loop {
        let next = net.server.poll(net.now).unwrap_or(end);
        if net.now >= end {
            break;
        }
        net.now = next.clamp(net.now + 1, end);
    }
    let (reports, others) = net.to_client.borrow_mut().drain(..).partition(|frame: &Vec<u8>| is_report(frame));
    REPORTS.with_borrow_mut(|all: &mut Vec<Vec<u8>>| all.extend::<Vec<Vec<u8>>>(reports));
    others
}

thread_local! {
    /// Reports of groups that were sent while `pass` worked, which most tests are not about.
    static REPORTS: std::cell::RefCell<Vec<Vec<u8>>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn is_report(frame: &[u8]) -> bool {
    frame[12..14] == [0x86, 0xdd] && frame[20] == 0 && frame[62] == 143
}

/// Takes the reports of groups that were sent: the sender, the kind of the first record, and the groups.
fn reports() -> Vec<(Ipv6Addr, u8, Vec<Ipv6Addr>)> {
    let address = |bytes: &[u8]| Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap());
    let read = |frame: Vec<u8>| {
        let groups = frame[70..].chunks(20).map(|record| address(&record[4..])).collect();
        (address(&frame[22..38]), frame[70], groups)
    };
    REPORTS.take().into_iter().map(read).collect()
}

/// The groups of the host's addresses are reported when it begins, when its address is in use, and when a router asks.
#[test]
fn groups_are_reported_to_routers_and_switches() {
    let configurations = [configuration(SixAddressing::LinkLocal), Configuration::default()];
    let mut net = Net::configured(Faults::default(), 1, configurations);
    pass(&mut net, 10 * SECOND);
    let group = vec![address("ff02::1:ff00:f")];
    let (none, own) = (Ipv6Addr::UNSPECIFIED, address(SERVER));
    let sent = reports();
    assert!((3..=4).contains(&sent.len()), "{sent:?}");
    assert_eq!(sent[0], (none, 4, group.clone()));
    assert!(sent[sent.len() - 2..].iter().all(|report| *report == (own, 4, group.clone())), "{sent:?}");
    // A router asks, with a header of options before the message.
    let mut message = [vec![130, 0, 0, 0, 0x03, 0xe8, 0, 0], vec![0; 20]].concat();
    let mut query = frame(ROUTER, "ff02::1", 1, &message);
    message.copy_from_slice(&query[54..]);
    query.splice(54.., [58, 0, 5, 2, 0, 0, 1, 0].into_iter().chain(message));
    (query[18], query[19], query[20]) = (0, 36, 0);
    net.to_server.borrow_mut().push_back(query.clone());
    pass(&mut net, 3 * SECOND);
    assert_eq!(reports(), [(own, 2, group)]);
    query[70] ^= 1;
    net.to_server.borrow_mut().push_back(query);
    pass(&mut net, 3 * SECOND);
    assert_eq!(reports(), []);
}

fn addresses(net: &Net) -> Vec<Ipv6Addr> {
    net.server.six_addresses().filter(|own| !own.is_tentative && !own.is_duplicate).map(|own| own.address).collect()
}

/// Returns a frame with an ICMPv6 message.
fn frame(from: &str, to: &str, hops: u8, message: &[u8]) -> Vec<u8> {
    let (from, to) = (address(from), address(to));
    let hardware = if to.is_multicast() { [0x33, 0x33, 0, 0, 0, to.octets()[15]] } else { [2, 0, 0, 0, 0, 15] };
    let mut message = message.to_vec();
    message[2..4].fill(0);
    let pseudo = [&from.octets()[..], &to.octets(), &(message.len() as u32).to_be_bytes(), &[0, 0, 0, 58], &message];
    let bytes = pseudo.concat();
    let sum: u64 = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    message[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    let mut frame = [&hardware[..], &[2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([58, hops]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(message);
    frame
}

fn prefix_option(prefix: &str, flags: u8, valid: u32, preferred: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, flags];
    option.extend(valid.to_be_bytes());
    option.extend(preferred.to_be_bytes());
    option.extend([0; 4]);
    option.extend(address(prefix).octets());
    option
}

/// Returns a router's advertisement.
fn advertisement(from: &str, lifetime: u16, options: &[Vec<u8>]) -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 64, 0];
    message.extend(lifetime.to_be_bytes());
    message.extend([0; 8]);
    message.extend([1, 1, 2, 0, 0, 0, 0, 2]);
    message.extend(options.concat());
    frame(from, "ff02::1", 255, &message)
}

fn hear(net: &mut Net, frame: Vec<u8>) {
    net.to_server.borrow_mut().push_back(frame);
    net.server.poll(net.now);
}

fn listen(net: &mut Net, port: u16) -> network::ListenerId {
    let binding = net.server.tcp_bind(LocalEnd::of_both(port), Sharing::Exclusive).unwrap();
    net.server.tcp_listen(binding, 16, &TcpOptions::default()).unwrap()
}

fn connect(net: &mut Net, listener: network::ListenerId, to: SocketAddr) -> (ConnectionId, ConnectionId) {
    let client = net.client.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
    let mut server = None;
    net.run_until(100 * SECOND, |net| {
        if server.is_none() {
            server = net.server.accept(listener).unwrap();
        }
        server.is_some() && net.client.connected(client).unwrap()
    });
    (client, server.unwrap().0)
}

#[test]
fn a_host_gives_itself_an_address_after_asking_whether_it_is_free() {
    let mut net =
        Net::configured(Faults::default(), 1, [configuration(SixAddressing::LinkLocal), Configuration::default()]);
    assert_eq!(net.server.six_addresses().count(), 1);
    assert!(addresses(&net).is_empty());
    let sent = pass(&mut net, 3 * SECOND);
    assert_eq!(addresses(&net), [address(SERVER)]);
    // One question from no address, and no request of routers.
    assert_eq!(sent.len(), 1);
    assert_eq!((&sent[0][..6], sent[0][54]), (&[0x33, 0x33, 0xff, 0, 0, 0x0f][..], 135));
    assert_eq!(sent[0][22..38], [0; 16]);
    // An address that others ask for is defended by an answer to all.
    let mut question = vec![135, 0, 0, 0, 0, 0, 0, 0];
    question.extend(address(SERVER).octets());
    hear(&mut net, frame("::", "ff02::1:ff00:f", 255, &question));
    let sent = pass(&mut net, 0);
    assert_eq!((sent[0][54], &sent[0][..6]), (136, &[0x33, 0x33, 0, 0, 0, 1][..]));
    assert_eq!(addresses(&net), [address(SERVER)]);
}

#[test]
fn an_address_of_another_host_is_not_taken() {
    let mut net =
        Net::configured(Faults::default(), 1, [configuration(SixAddressing::LinkLocal), Configuration::default()]);
    for _ in 0..3 {
        pass(&mut net, 990 * MILLISECOND);
        let tried = net.server.six_addresses().next().unwrap().address;
        assert!(addresses(&net).is_empty());
        let mut told = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
        told.extend(tried.octets());
        told.extend([2, 1, 2, 0, 0, 0, 0, 9]);
        hear(&mut net, frame(&tried.to_string(), "ff02::1", 255, &told));
        assert!(net.server.six_addresses().all(|own| own.address != tried || own.is_duplicate));
    }
    pass(&mut net, 10 * SECOND);
    assert!(addresses(&net).is_empty());
    assert!(net.server.six_addresses().all(|own| own.is_duplicate));
}

#[test]
fn connections_and_datagrams_go_over_the_wire() {
    let mut net = net(Faults::default(), 1);
    let listener = listen(&mut net, 80);
    let (client, server) = connect(&mut net, listener, end(SERVER, 80));
    assert_eq!(net.server.remote_endpoint(server).unwrap().ip(), address(CLIENT));
    assert_eq!(net.client.local_endpoint(client).unwrap().ip(), address(CLIENT));
    assert_eq!(send(&mut net.client, client, b"hello", net.now), Ok(Sent::Bytes(5)));
    let mut got = Vec::new();
    net.run_until(SECOND, |net| {
        let _ = receive(&mut net.server, server, &mut got, net.now);
        got == b"hello"
    });

    let datagrams = |net: &mut Net| -> [DatagramId; 2] {
        let options = DatagramOptions::default();
        [net.server.udp_bind(LocalEnd::of_both(53), &options), net.client.udp_bind(LocalEnd::of_both(0), &options)]
            .map(Result::unwrap)
    };
    let [here, there] = datagrams(&mut net);
    let to = end(SERVER, 53);
    for length in [0, 1, 100, 1452] {
        let sent = net.client.udp_send_with(there, Some(to), length, |room| room.fill(length as u8));
        assert_eq!(sent, Ok(Sent::Bytes(length)));
        net.pass(MILLISECOND);
        let mut taken = None;
        net.server.udp_receive_with(here, |from, bytes| taken = Some((from, bytes.to_vec()))).unwrap();
        let (from, bytes) = taken.unwrap();
        assert_eq!((from.ip(), bytes), (address(CLIENT).into(), vec![length as u8; length]));
    }
    assert_eq!(net.client.udp_send_with(there, Some(to), 1453, |_| ()), Err(Error::TooLong));
    // A port without a socket.
    net.client.udp_connect(there, Some(end(SERVER, 54))).unwrap();
    net.client.udp_send_with(there, None, 1, |room| room.fill(1)).unwrap();
    net.pass(MILLISECOND);
    assert_eq!(net.client.take_datagram_failure(there), Ok(Some(Error::Refused)));
    // And one without a listener.
    let refused = net.client.tcp_connect(None, end(SERVER, 81), &TcpOptions::default(), net.now).unwrap();
    net.pass(MILLISECOND);
    assert_eq!(net.client.connected(refused), Err(Error::Refused));
}

#[test]
fn a_host_that_is_not_there_is_given_up() {
    let mut net = net(Faults::default(), 1);
    let options = DatagramOptions::default();
    let id = net.client.udp_bind(LocalEnd::of_both(0), &options).unwrap();
    net.client.udp_connect(id, Some(end("fe80::99", 53))).unwrap();
    for _ in 0..3 {
        net.client.udp_send_with(id, None, 1, |room| room.fill(1)).unwrap();
    }
    net.pass(2 * SECOND);
    assert_eq!(net.client.take_datagram_failure(id), Ok(None));
    net.pass(20 * SECOND);
    assert_eq!(net.client.take_datagram_failure(id), Ok(Some(Error::Unreachable)));
    let connection = net.client.tcp_connect(None, end("fe80::98", 80), &TcpOptions::default(), net.now).unwrap();
    net.pass(10 * SECOND);
    assert_eq!(net.client.connected(connection), Ok(false));
    net.pass(60 * SECOND);
    assert_eq!(net.client.connected(connection), Err(Error::TimedOut));
    // Other networks have no way at all.
    let far = net.client.tcp_connect(None, end("2001:db8::1", 80), &TcpOptions::default(), net.now);
    assert_eq!(far, Err(Error::Unreachable));
}

/// Hosts that are not there do not hold up what goes to others.
#[test]
fn a_silent_neighbour_does_not_block_others() {
    let mut net = net(Faults::default(), 1);
    let options = DatagramOptions::default();
    let here = net.server.udp_bind(LocalEnd::of_both(53), &options).unwrap();
    let id = net.client.udp_bind(LocalEnd::of_both(0), &options).unwrap();
    let send = |net: &mut Net, to: &str, number: u8| {
        net.client.udp_send_with(id, Some(end(to, 53)), 100, |room| room.fill(number))
    };
    let received = |net: &mut Net| {
        let mut numbers = Vec::new();
        while net.server.udp_receive_with(here, |_, bytes| numbers.push(bytes[99])) == Ok(Some(())) {}
        numbers
    };
    for round in 0..10u8 {
        for number in 0..6 {
            assert_eq!(
                send(&mut net, &format!("fe80::{:x}", 0x99 + 7 * u16::from(round % 5) + number), 100),
                Ok(Sent::Bytes(100))
            );
        }
        assert_eq!(send(&mut net, SERVER, round), Ok(Sent::Bytes(100)));
        net.pass(20 * MILLISECOND);
        assert_eq!(received(&mut net), [round], "round {round}");
    }
    // Everything that waits is over after three seconds, and reported to one that wants that.
    net.pass(4 * SECOND);
    net.client.udp_connect(id, Some(end("fe80::99", 53))).unwrap();
    for _ in 0..3 {
        net.client.udp_send_with(id, None, 1, |room| room.fill(1)).unwrap();
    }
    net.pass(4 * SECOND);
    assert_eq!(net.client.take_datagram_failure(id), Ok(Some(Error::Unreachable)));
    net.pass(20 * SECOND);
    assert_eq!(net.client.take_datagram_failure(id), Ok(None));
}

/// Datagrams that wait arrive in their order, and as they were.
#[test]
fn datagrams_that_wait_arrive_in_order() {
    let mut net = net(Faults::default(), 1);
    let options = DatagramOptions { datagrams: 8, ..DatagramOptions::default() };
    let here = net.server.udp_bind(LocalEnd::of_both(53), &options).unwrap();
    let id = net.client.udp_bind(LocalEnd::of_both(0), &options).unwrap();
    for number in 1..=7usize {
        let sent = net.client.udp_send_with(id, Some(end(SERVER, 53)), number * 100, |room| room.fill(number as u8));
        assert_eq!(sent, Ok(Sent::Bytes(number * 100)));
    }
    net.client.poll(net.now);
    net.client.poll(net.now + MILLISECOND);
    net.pass(20 * MILLISECOND);
    let mut numbers = Vec::new();
    let mut take =
        |_, bytes: &[u8]| numbers.push((bytes.len(), bytes.iter().all(|&byte| usize::from(byte) * 100 == bytes.len())));
    while net.server.udp_receive_with(here, &mut take).unwrap().is_some() {}
    assert_eq!(numbers, (1..=7).map(|number| (number * 100, true)).collect::<Vec<_>>());
}

#[test]
fn a_router_gives_addresses_a_way_and_name_servers() {
    let mut net = hearing();
    let mut servers = vec![25, 3, 0, 0, 0, 0, 0, 100];
    servers.extend(address("fec0::3").octets());
    let mtu = vec![5, 1, 0, 0, 0, 0, 0x05, 0x78];
    let all = advertisement(ROUTER, 1800, &[prefix_option("fec0::", 0xc0, 7200, 3600), mtu, servers]);
    hear(&mut net, all);
    let sent = pass(&mut net, 3 * SECOND);
    assert_eq!(sent.iter().filter(|frame| frame[54] == 135).count(), 1, "the address is asked for");
    let own = address("fec0::ff:fe00:f");
    assert_eq!(addresses(&net), [address(SERVER), own]);
    assert_eq!(net.server.six_routers().collect::<Vec<_>>(), [address(ROUTER)]);
    assert_eq!(net.server.six_name_servers().collect::<Vec<_>>(), [address("fec0::3")]);
    assert_eq!(net.server.six_prefixes().collect::<Vec<_>>(), [(address("fec0::"), 64)]);

    // To another network: by the router, whose hardware address it has told, and from the address of its prefix.
    let id = net.server.udp_bind(LocalEnd::of_both(7), &DatagramOptions::default()).unwrap();
    let send = |net: &mut Net, length| {
        let sent = net.server.udp_send_with(id, Some(end("2001:db8::1", 9)), length, |room| room.fill(0));
        (sent, pass(net, 0))
    };
    let (sent, frames) = send(&mut net, 1352);
    assert_eq!(sent, Ok(Sent::Bytes(1352)));
    assert_eq!(frames[0][..6], [2, 0, 0, 0, 0, 2]);
    assert_eq!(frames[0][22..38], own.octets());
    assert_eq!(send(&mut net, 1353).0, Err(Error::TooLong), "the router has told the size of packets");

    // A packet that was too large for a link behind it.
    let mut quoted = vec![2, 0, 0, 0, 0, 0, 5, 0];
    quoted.extend(&frames[0][14..14 + 40 + 8]);
    hear(&mut net, frame("2001:db8::99", "fec0::ff:fe00:f", 60, &quoted));
    assert_eq!(send(&mut net, 1233).0, Err(Error::TooLong));
    assert_eq!(send(&mut net, 1232).0, Ok(Sent::Bytes(1232)));
    pass(&mut net, 601 * SECOND);
    assert_eq!(send(&mut net, 1352).0, Ok(Sent::Bytes(1352)));

    // The time of everything ends.
    hear(&mut net, advertisement(ROUTER, 0, &[]));
    assert_eq!(send(&mut net, 1).0, Err(Error::Unreachable));
    assert_eq!(net.server.six_name_servers().count(), 0);
    pass(&mut net, 3000 * SECOND);
    assert!(net.server.six_addresses().any(|own| own.address == address("fec0::ff:fe00:f") && own.is_deprecated));
    pass(&mut net, 3600 * SECOND);
    assert_eq!(addresses(&net), [address(SERVER)]);
    assert_eq!(net.server.six_prefixes().count(), 0);
}

#[test]
fn connections_of_a_lost_address_end() {
    let mut net = hearing();
    hear(&mut net, advertisement(ROUTER, 1800, &[prefix_option("fec0::", 0xc0, 7200, 3600)]));
    pass(&mut net, 3 * SECOND);
    let id = net.server.tcp_connect(None, end("fec0::2", 80), &TcpOptions::default(), net.now).unwrap();
    // Two hours are kept; then it is over, though the connection still waits for its neighbour.
    hear(&mut net, advertisement(ROUTER, 1800, &[prefix_option("fec0::", 0xc0, 1, 1)]));
    pass(&mut net, 30 * SECOND);
    assert_eq!(net.server.connected(id), Ok(false));
    pass(&mut net, 20 * SECOND);
    let again = net.server.tcp_connect(None, end(CLIENT, 80), &TcpOptions::default(), net.now).unwrap();
    assert_eq!(net.server.local_endpoint(again).unwrap().ip(), address(SERVER));
    pass(&mut net, 2 * 3600 * SECOND);
    assert_eq!(addresses(&net), [address(SERVER)]);
    assert!(net.server.connected(id).is_err());
}

#[test]
fn liars_are_bounded() {
    let mut net = hearing();
    let one = |number: u32| format!("fe80::{number:x}");
    for number in 0..500u32 {
        let prefix = format!("2001:db8:{number:x}::");
        let mut servers = vec![25, 3, 0, 0, 0, 1, 0, 0];
        servers.extend(address(&prefix).octets());
        servers[23] = 1;
        let options = [prefix_option(&prefix, 0xc0, u32::MAX, u32::MAX), servers];
        hear(&mut net, advertisement(&one(number + 100), 9000, &options));
    }
    pass(&mut net, 5 * SECOND);
    assert_eq!(addresses(&net).len(), 5);
    assert_eq!((net.server.six_routers().count(), net.server.six_name_servers().count()), (4, 3));
    assert_eq!(net.server.six_prefixes().count(), 8);
    // From another network, or damaged, or of a size that IPv6 does not have.
    let mut far = advertisement("fe80::1", 9000, &[]);
    far[21] = 254;
    hear(&mut net, far);
    let mut damaged = advertisement("fe80::1", 0, &[]);
    damaged[60] ^= 1;
    hear(&mut net, damaged);
    hear(&mut net, advertisement(&one(100), 9000, &[vec![5, 1, 0, 0, 0, 0, 0, 100]]));
    assert_eq!(net.server.six_routers().count(), 4);
    let id = net.server.udp_bind(LocalEnd::of_both(7), &DatagramOptions::default()).unwrap();
    assert_eq!(net.server.udp_send_with(id, Some(end(ROUTER, 9)), 1452, |room| room.fill(0)), Ok(Sent::Bytes(1452)));
    // A flood of questions, of which not all are answered.
    for number in 0..1000u32 {
        let mut question = vec![135, 0, 0, 0, 0, 0, 0, 0];
        question.extend(address(SERVER).octets());
        question.extend([1, 1, 2, 0, 0, 1, (number >> 8) as u8, number as u8]);
        net.to_server.borrow_mut().push_back(frame(&one(number + 5000), SERVER, 255, &question));
    }
    let answers = pass(&mut net, 5 * MILLISECOND);
    assert!((1..100).contains(&answers.len()), "{} answers", answers.len());
}

/// A liar's entries last as long as it goes on: after an hour of silence a router has their places.
#[test]
fn what_a_liar_has_advertised_once_gives_its_place() {
    let mut net = hearing();
    let servers = |address: &str| {
        let mut servers = vec![25, 3, 0, 0, 0xff, 0xff, 0xff, 0xff];
        servers.extend(self::address(address).octets());
        servers
    };
    for number in 1..20 {
        let prefix = format!("2001:db8:{number:x}::");
        let options = [prefix_option(&prefix, 0xc0, u32::MAX, u32::MAX), servers(&format!("{prefix}53"))];
        hear(&mut net, advertisement(&format!("fe80::{number:x}"), 0xffff, &options));
    }
    pass(&mut net, 3 * SECOND);
    let honest = [prefix_option("fec0::", 0xc0, 86400, 3600), servers("fec0::3")];
    let own = address("fec0::ff:fe00:f");
    let is_served = |net: &Net| {
        [
            net.server.six_prefixes().any(|prefix| prefix == (address("fec0::"), 64)),
            net.server.six_routers().any(|router| router == address(ROUTER)),
            net.server.six_name_servers().any(|server| server == address("fec0::3")),
            addresses(net).contains(&own),
        ]
    };
    for round in 0..8 {
        hear(&mut net, advertisement(ROUTER, 1800, &honest));
        if round == 0 {
            assert_eq!(is_served(&net), [false; 4]);
        }
        pass(&mut net, 600 * SECOND);
    }
    assert_eq!(is_served(&net), [true; 4]);
    pass(&mut net, 7200 * SECOND);
    assert_eq!(net.server.six_name_servers().count(), 0, "no server's time is endless");
}

#[test]
fn prefixes_are_judged_by_their_leading_bits() {
    let mut net = hearing();
    let short = |prefix: &str, length: u8| {
        let mut option = prefix_option(prefix, 0xc0, 7200, 3600);
        option[2] = length;
        option
    };
    for option in [short("::1:0:0:1", 64), short("2001::", 3), short("2001:db8::", 47), short("febf::1", 0)] {
        hear(&mut net, advertisement(ROUTER, 1800, &[option]));
    }
    pass(&mut net, 3 * SECOND);
    assert_eq!((net.server.six_prefixes().count(), net.server.six_addresses().count()), (0, 1));
    hear(&mut net, advertisement(ROUTER, 1800, &[short("2001:db8::77", 64), short("2001:db8:8000::", 48)]));
    let prefixes = [(address("2001:db8::"), 64), (address("2001:db8:8000::"), 48)];
    assert_eq!(net.server.six_prefixes().collect::<Vec<_>>(), prefixes);
}

#[test]
fn an_echo_is_answered_and_a_forged_one_is_not() {
    let mut net = hearing();
    let request = [&[128, 0, 0, 0, 1, 2, 0, 3][..], &[7; 56]].concat();
    hear(&mut net, frame(CLIENT, SERVER, 64, &request));
    let sent = pass(&mut net, 0);
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0][54], &sent[0][58..]), (129, &request[4..]));
    assert_eq!((&sent[0][..6], &sent[0][38..54]), (&[2, 0, 0, 0, 0, 2][..], &address(CLIENT).octets()[..]));
    for (from, to) in [("::", SERVER), ("ff02::1", SERVER), (CLIENT, "fe80::77"), (CLIENT, "ff02::1"), ("::1", SERVER)]
    {
        hear(&mut net, frame(from, to, 64, &request));
        assert_eq!(pass(&mut net, 0).len(), 0, "{from} to {to}");
    }
}

#[test]
fn a_request_that_is_unreachable_fails_at_once() {
    let mut net = hearing();
    hear(&mut net, advertisement(ROUTER, 1800, &[prefix_option("fec0::", 0xc0, 7200, 3600)]));
    pass(&mut net, 3 * SECOND);
    let id = net.server.tcp_connect(None, end("2001:db8::1", 80), &TcpOptions::default(), net.now).unwrap();
    let sent = pass(&mut net, MILLISECOND);
    let quoted = |kind: u8, sent: &[u8]| [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &sent[14..]].concat();
    // One with a number that was guessed counts nothing.
    let mut guessed = sent[0].clone();
    guessed[14 + 40 + 4] ^= 1;
    hear(&mut net, frame("fec0::2", "fec0::ff:fe00:f", 64, &quoted(1, &guessed)));
    assert_eq!(net.server.connected(id), Ok(false));
    hear(&mut net, frame("fec0::2", "fec0::ff:fe00:f", 64, &quoted(1, &sent[0])));
    assert_eq!(net.server.connected(id), Err(Error::Unreachable));
}

/// Returns an IPv6 packet with a datagram, or with another beginning of its transport header.
fn packet(from: &str, to: &str, protocol: u8, transport: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((transport.len() as u16).to_be_bytes());
    packet.extend([protocol, 64]);
    packet.extend(address(from).octets());
    packet.extend(address(to).octets());
    packet.extend(transport);
    packet
}

fn ports(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 8, 1, 1]].concat()
}

fn error(kind: u8, size: u32, quoted: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &size.to_be_bytes(), quoted].concat()
}

fn question(target: &str) -> Vec<u8> {
    let mut question = vec![135, 0, 0, 0, 0, 0, 0, 0];
    question.extend(address(target).octets());
    question.extend([1, 1, 2, 0, 0, 0, 0, 2]);
    question
}

/// Returns an advertisement of a neighbour.
fn told(target: &str, flags: u8, hardware: u8) -> Vec<u8> {
    let mut told = vec![136, 0, 0, 0, flags, 0, 0, 0];
    told.extend(address(target).octets());
    told.extend([2, 1, 2, 0, 0, 0, 0, hardware]);
    told
}

#[test]
fn errors_quote_what_this_host_can_have_sent() {
    let mut net = hearing();
    let options = DatagramOptions::default();
    let open = net.server.udp_bind(LocalEnd::of_both(53), &options).unwrap();
    let within = net.server.udp_bind(LocalEnd::of_both(60), &options).unwrap();
    net.server.udp_connect(within, Some(end("::1", 61))).unwrap();
    let out = net.server.udp_bind(LocalEnd::of_both(70), &options).unwrap();
    net.server.udp_connect(out, Some(end(CLIENT, 71))).unwrap();
    for (from, to, ends) in [
        (SERVER, "::", (53, 0)),
        (SERVER, CLIENT, (53, 0)),
        (SERVER, CLIENT, (53, 9)),
        ("::1", "::1", (60, 61)),
        (SERVER, "::1", (60, 61)),
        ("fe80::77", CLIENT, (70, 71)),
        ("::", CLIENT, (70, 71)),
    ] {
        let quoted = packet(from, to, 17, &ports(ends.0, ends.1));
        hear(&mut net, frame(CLIENT, SERVER, 64, &error(1, 0, &quoted)));
        for id in [open, within, out] {
            assert_eq!(net.server.take_datagram_failure(id), Ok(None), "{from} to {to}, {ends:?}");
        }
    }
    // To another address than the one that has sent.
    let quoted = packet(SERVER, CLIENT, 17, &ports(70, 71));
    hear(&mut net, frame(CLIENT, "fe80::77", 64, &error(1, 0, &quoted)));
    assert_eq!(net.server.take_datagram_failure(out), Ok(None));
    // A way that is not there now may come back; a port that is not there does not.
    let mut message = error(1, 0, &quoted);
    for (code, failure) in [(0, None), (3, None), (4, Some(Error::Refused)), (1, Some(Error::HostUnreachable))] {
        message[1] = code;
        hear(&mut net, frame(CLIENT, SERVER, 64, &message));
        assert_eq!(net.server.take_datagram_failure(out), Ok(failure), "{code}");
    }
}

#[test]
fn errors_of_four_quote_what_this_host_can_have_sent() {
    let mut net = Net::new(Faults::default(), 1);
    let (own, other) = (wire::SERVER, wire::CLIENT);
    let id = net.server.udp_bind(LocalEnd::of_both(53), &DatagramOptions::default()).unwrap();
    let sum = |bytes: &[u8]| {
        let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
    };
    let packet = |from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]| {
        let mut header = vec![0x45, 0, 0, 20 + payload.len() as u8, 0, 0, 0x40, 0, 64, protocol, 0, 0];
        header.extend(from.octets());
        header.extend(to.octets());
        let checksum = sum(&header);
        header[10..12].copy_from_slice(&checksum);
        [&header, payload].concat()
    };
    let mut fails_after = |from: Ipv4Addr, to: Ipv4Addr, ends: [u16; 2]| {
        let mut error = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &packet(from, to, 17, &ports(ends[0], ends[1]))].concat();
        let checksum = sum(&error);
        error[2..4].copy_from_slice(&checksum);
        let hardware = [2, 0, 0, 0, 0, 15, 2, 0, 0, 0, 0, 2, 8, 0];
        hear(&mut net, [&hardware[..], &packet(other, own, 1, &error)].concat());
        let failed = net.server.take_datagram_failure(id).unwrap().is_some();
        net.server.udp_connect(id, Some(SocketAddr::new(other.into(), 9))).unwrap();
        failed
    };
    assert!(!fails_after(own, Ipv4Addr::UNSPECIFIED, [53, 0]));
    assert!(fails_after(own, other, [53, 9]));
    assert!(!fails_after(Ipv4Addr::LOCALHOST, other, [53, 9]));
    assert!(!fails_after(other, other, [53, 9]));
}

#[test]
fn echoes_and_errors_leave_neighbours_their_answers() {
    let mut net = hearing();
    for _ in 0..50 {
        let request = [&[128, 0, 0, 0, 1, 2, 0, 3][..], &[7; 8]].concat();
        hear(&mut net, frame(CLIENT, SERVER, 64, &request));
    }
    net.to_client.borrow_mut().clear();
    hear(&mut net, frame(CLIENT, SERVER, 255, &question(SERVER)));
    let sent = pass(&mut net, 0);
    assert_eq!(sent.iter().filter(|frame| frame[54] == 136).count(), 1);
}

#[test]
fn a_datagram_without_a_checksum_is_dropped() {
    let mut net = hearing();
    let id = net.server.udp_bind(LocalEnd::of_both(53), &DatagramOptions::default()).unwrap();
    for port in [53, 54] {
        let mut datagram = ports(9, port);
        datagram[6..].fill(0);
        let mut bytes = vec![2, 0, 0, 0, 0, 15, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        bytes.extend(packet(CLIENT, SERVER, 17, &datagram));
        hear(&mut net, bytes);
    }
    let mut count = 0;
    let _ = net.server.udp_receive_with(id, |_, _| count += 1);
    assert_eq!((count, pass(&mut net, 0).len()), (0, 0));
}

#[test]
fn a_router_that_is_lost_is_asked_for_again() {
    let asked = |sent: &[Vec<u8>]| sent.iter().filter(|frame| frame[54] == 133).count();
    let mut net = hearing();
    // One that is no router ends no asking.
    hear(&mut net, advertisement("fe80::9", 0, &[]));
    assert!(asked(&pass(&mut net, 20 * SECOND)) > 0);
    hear(&mut net, advertisement(ROUTER, 60, &[]));
    assert_eq!(asked(&pass(&mut net, 20 * SECOND)), 0);
    // One that would have the router at another place, and is not believed.
    hear(&mut net, frame(ROUTER, "ff02::1", 255, &told(ROUTER, 0, 9)));
    assert_eq!(net.server.six_routers().count(), 1);
    hear(&mut net, frame(ROUTER, "ff02::1", 255, &told(ROUTER, 0x20, 9)));
    assert_eq!(net.server.six_routers().count(), 0);
    assert_eq!(asked(&pass(&mut net, 20 * SECOND)), 3);
    hear(&mut net, advertisement(ROUTER, 60, &[]));
    assert_eq!(asked(&pass(&mut net, 59 * SECOND)), 0);
    assert_eq!(asked(&pass(&mut net, 20 * SECOND)), 3, "its time is over");
}

#[test]
fn routers_keep_their_places() {
    let mut net = hearing();
    let routers = ["fe80::1", "fe80::2", "fe80::3"];
    for router in [routers, [routers[0], routers[2], routers[1]]].concat() {
        hear(&mut net, advertisement(router, 1800, &[]));
    }
    assert_eq!(net.server.six_routers().collect::<Vec<_>>(), routers.map(address));
}

#[test]
fn a_host_without_six_hears_nothing_of_it() {
    let mut net = Net::configured(Faults::default(), 1, [Configuration::default(), Configuration::default()]);
    let id = net.server.udp_bind(LocalEnd::of_both(53), &DatagramOptions::default()).unwrap();
    net.server.udp_connect(id, Some(end("::1", 54))).unwrap();
    let quoted = packet("::1", "::1", 17, &ports(53, 54));
    hear(&mut net, frame(CLIENT, SERVER, 64, &error(1, 0, &quoted)));
    assert_eq!(net.server.take_datagram_failure(id), Ok(None));
}

#[test]
fn a_group_that_does_not_leave_the_machine_has_no_way() {
    let mut net = hearing();
    let id = net.server.udp_bind(LocalEnd::of_both(7), &DatagramOptions::default()).unwrap();
    for (group, is_possible) in [("ff00::1", false), ("ff01::1", false), ("ff02::1", true)] {
        let sent = net.server.udp_send_with(id, Some(end(group, 9)), 1, |room| room.fill(0));
        assert_eq!(sent.is_ok(), is_possible, "{group}");
    }
}

/// An acknowledgement that any host can send does not make a number one that is under way.
#[test]
fn a_forged_acknowledgement_does_not_help_a_forged_report() {
    let mut net = net(Faults::default(), 1);
    let listener = listen(&mut net, 80);
    let (client, server) = connect(&mut net, listener, end(SERVER, 80));
    let port = net.client.local_endpoint(client).unwrap().port();
    send(&mut net.server, server, &[1; 1000], net.now).unwrap();
    let sent = pass(&mut net, 0);
    let number = u32::from_be_bytes(sent[0][58..62].try_into().unwrap());
    let id = net.server.udp_bind(LocalEnd::of_both(7), &DatagramOptions::default()).unwrap();
    let mut is_narrow_after = |guess: u32| {
        let mut segment = [&port.to_be_bytes()[..], &80u16.to_be_bytes(), &[0; 4], &guess.to_be_bytes()].concat();
        segment.extend([0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        let mut forged = vec![2, 0, 0, 0, 0, 15, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        forged.extend(packet(CLIENT, SERVER, 6, &segment));
        hear(&mut net, forged);
        let ends = [&80u16.to_be_bytes()[..], &port.to_be_bytes(), &guess.to_be_bytes()].concat();
        hear(&mut net, frame(CLIENT, SERVER, 64, &error(2, 1280, &packet(SERVER, CLIENT, 6, &ends))));
        net.server.udp_send_with(id, Some(end(CLIENT, 9)), 1452, |room| room.fill(0)) == Err(Error::TooLong)
    };
    assert!(!is_narrow_after(number.wrapping_add(0x4000_0000)));
    assert!(is_narrow_after(number));
}

#[test]
fn a_path_is_narrow_only_for_what_was_sent() {
    let mut net = hearing();
    hear(&mut net, advertisement(ROUTER, 1800, &[prefix_option("fec0::", 0xc0, 7200, 3600)]));
    pass(&mut net, 3 * SECOND);
    let id = net.server.udp_bind(LocalEnd::of_both(7), &DatagramOptions::default()).unwrap();
    let far = "2001:db8::1";
    let own = "fec0::ff:fe00:f";
    let send = |net: &mut Net, to: &str| {
        let sent = net.server.udp_send_with(id, Some(end(to, 9)), 1452, |room| room.fill(0));
        pass(net, 0);
        sent
    };
    let quoted = packet(own, far, 17, &ports(7, 9));
    let report = |size| frame("2001:db8::99", own, 60, &error(2, size, &quoted));
    hear(&mut net, report(1280));
    assert_eq!(send(&mut net, far), Ok(Sent::Bytes(1452)), "nothing was sent there");
    for size in [0, 1279, 1500, 9000] {
        hear(&mut net, report(size));
        assert_eq!(send(&mut net, far), Ok(Sent::Bytes(1452)), "{size}");
    }
    hear(&mut net, report(1400));
    assert_eq!(send(&mut net, far), Err(Error::TooLong));
}

/// Sends data both ways; it must arrive whole.
fn exchange(faults: Faults, seed: u64, amount: usize) {
    let mut net = net(faults, seed);
    let listener = listen(&mut net, 80);
    let (client, server) = connect(&mut net, listener, end(SERVER, 80));
    let mut random = Random(seed | 1);
    let data: Vec<u8> = (0..amount).map(|_| random.next() as u8).collect();
    let (mut sent, mut back) = (0, 0);
    let (mut got, mut returned) = (Vec::new(), Vec::new());
    net.run_until(4000 * SECOND, |net| {
        for (stack, id, done) in [(&mut net.client, client, &mut sent), (&mut net.server, server, &mut back)] {
            if let Ok(Sent::Bytes(count)) = send(stack, id, &data[*done..], net.now) {
                *done += count;
            }
        }
        while let Ok(Received::Bytes(1..)) = receive(&mut net.server, server, &mut got, net.now) {}
        while let Ok(Received::Bytes(1..)) = receive(&mut net.client, client, &mut returned, net.now) {}
        got.len() >= amount && returned.len() >= amount
    });
    assert!(got == data && returned == data);
}

#[test]
fn much_data_arrives_whole() {
    exchange(Faults::default(), 1, 300_000);
}

#[test]
fn a_path_that_becomes_narrow_carries_the_rest() {
    let mut net = net(Faults::default(), 1);
    let listener = listen(&mut net, 80);
    let (client, server) = connect(&mut net, listener, end(SERVER, 80));
    let data = vec![5; 20_000];
    let (mut sent, mut got, mut told) = (0, Vec::new(), 0);
    let limit = net.now + 60 * SECOND;
    while got.len() < data.len() {
        assert!(net.now < limit, "{} of {} bytes", got.len(), data.len());
        if let Ok(Sent::Bytes(count)) = send(&mut net.client, client, &data[sent..], net.now) {
            sent += count;
        }
        net.client.poll(net.now);
        // A router between the two drops larger packets, and says so.
        let frames: Vec<_> = net.to_server.borrow_mut().drain(..).collect();
        for whole in frames {
            if whole.len() <= 14 + 1280 {
                net.to_server.borrow_mut().push_back(whole);
                continue;
            }
            told += 1;
            let quoted = [&[2, 0, 0, 0, 0, 0, 5, 0][..], &whole[14..14 + 1200]].concat();
            let mut error = frame("fe80::77", CLIENT, 64, &quoted);
            error[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 77]);
            net.to_client.borrow_mut().push_back(error);
        }
        net.server.poll(net.now);
        while let Ok(Received::Bytes(1..)) = receive(&mut net.server, server, &mut got, net.now) {}
        net.now += 10 * MILLISECOND;
    }
    assert!(got == data);
    assert!((1..20).contains(&told), "{told} packets were too large");
}

/// Messages of neighbour discovery with right checksums, and frames of any form, from strangers.
#[test]
fn fuzz_discovery() {
    let seeds: [&[u8]; 2] = [
        &[1, 134, 40, 0, 0, 0, 0, 0, 64, 8, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 5, 1, 0, 0, 0, 0, 5, 220, 3, 4, 64, 192],
        &[1, 136, 24, 0, 0, 0, 0, 0, 0, 0, 2, 9, 0, 3, 0x60, 6, 1],
    ];
    property::fuzz("discovery", &seeds, |input| {
        let mut numbers = property::Numbers::new(input);
        let mut net = Net::configured(Faults::default(), 1, [SixAddressing::Automatic; 2].map(configuration));
        net.pass(3 * SECOND);
        let listener = listen(&mut net, 80);
        for _ in 0..100 {
            if numbers.is_empty() {
                break;
            }
            match numbers.byte() % 4 {
                0 => {
                    let length = usize::from(numbers.byte());
                    let mut frame = vec![2, 0, 0, 0, 0, 15, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
                    frame.extend(numbers.bytes(length));
                    net.to_server.borrow_mut().push_back(frame);
                }
                1 | 2 => {
                    let (kind, length) = (numbers.byte(), usize::from(numbers.byte()));
                    let from = ["::", ROUTER, "fe80::77", SERVER][usize::from(numbers.byte() % 4)];
                    let to = ["ff02::1", SERVER, "ff02::1:ff00:f", "fec0::1"][usize::from(numbers.byte() % 4)];
                    let mut message = vec![kind, 0, 0, 0];
                    message.extend(numbers.bytes(length));
                    net.to_server.borrow_mut().push_back(frame(from, to, 255, &message));
                }
                _ => net.now += u64::from(numbers.byte()) * 20 * MILLISECOND,
            }
            net.server.poll(net.now);
            net.to_client.borrow_mut().clear();
        }
        assert!(net.server.six_addresses().count() <= 5 && net.server.six_routers().count() <= 4);
        // A neighbour with another hardware address may have been told of; it is asked again before long.
        net.pass(100 * SECOND);
        assert!(addresses(&net).contains(&address(SERVER)), "an address in use is kept");
        let (client, server) = connect(&mut net, listener, end(SERVER, 80));
        send(&mut net.client, client, b"well?", net.now).unwrap();
        net.pass(5 * SECOND);
        let mut got = Vec::new();
        assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(5)));
    });
}

proptest! {
    #![proptest_config(property::cases(12))]

    #[test]
    fn data_arrives_whole_over_a_bad_wire(
        seed in any::<u64>(), lost in 0u64..15, repeated in 0u64..15, delayed in 0u64..15, damaged in 0u64..10,
    ) {
        exchange(Faults { lost, repeated, delayed, damaged, unstamps: false }, seed, 20_000);
    }
}
