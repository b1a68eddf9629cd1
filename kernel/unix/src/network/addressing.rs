//! The source of the machine's addresses, and what the network tells about itself: the boot words `ip=`,
//! `ipv6.disable=` and `ipv6.autoconf=`, `/proc/net/pnp`, and the files there about addresses and groups.
//!
//! The word has the form of Linux's (its documentation, `nfsroot`): `ip=dhcp`, `ip=off`, or fields between colons, of
//! which these count: `ip=ADDRESS:SERVER:ROUTER:NETMASK:NAME:DEVICE:METHOD:NAMESERVER:NAMESERVER`. Without the word a
//! machine with a network card asks by DHCP.

use alloc::string::String;
use core::fmt::Write;
use core::net::{Ipv4Addr, Ipv6Addr};

use heapless::Vec as FixedVec;
use network::{ALL_NODES, Address, Addressing, Lease, NAME_SERVERS, SixAddress, SixAddressing, solicited_group};
use platform::println;
use spin::Once;

use crate::network::stack::STACK;

/// Numbers of the interfaces, as programs name them: that of connections within the machine, and the network card.
pub(crate) const LOOPBACK: u32 = 1;
pub(crate) const CARD: u32 = 2;
/// Name of the network card, with the zero at its end that programs expect.
pub(crate) const NAME_OF_CARD: &[u8] = b"eth0\0";

/// The address and the name servers of the boot word, as a lease that never ends.
static FIXED: Once<Lease> = Once::new();

/// Reads the boot word, for a machine with a network card.
pub(super) fn of_boot_word(word: Option<&str>) -> Addressing {
    match read(word) {
        Ok((addressing, lease)) => {
            if let Some(lease) = lease {
                FIXED.call_once(|| lease);
            }
            addressing
        }
        Err(wrong) => {
            let word = word.unwrap_or("");
            // A typing error in an address must not leave the choice to whoever answers.
            let (addressing, instead) = match word.starts_with(|first: char| first.is_ascii_digit()) {
                true => (Addressing::Nowhere, "there is no address"),
                false => (Addressing::Leased, "the address is asked for by DHCP"),
            };
            println!("network: ip={word}: {wrong}; {instead}");
            addressing
        }
    }
}

/// Reads the boot words for IPv6, which are Linux's: `ipv6.disable=1`, and `ipv6.autoconf=0` for the link-local address
/// alone.
pub(super) fn six_of_boot_words(disable: Option<&str>, automatic: Option<&str>) -> SixAddressing {
    for (name, word) in [("ipv6.disable", disable), ("ipv6.autoconf", automatic)] {
        if let Some(wrong) = word.filter(|word| !matches!(*word, "0" | "1")) {
            println!("network: {name}={wrong} is neither 0 nor 1; it does not count");
        }
    }
    addressing_of_six(disable, automatic)
}

fn addressing_of_six(disable: Option<&str>, automatic: Option<&str>) -> SixAddressing {
    match (disable, automatic) {
        (Some("1"), _) => SixAddressing::Off,
        (_, Some("0")) => SixAddressing::LinkLocal,
        _ => SixAddressing::Automatic,
    }
}

/// Reads the value of the boot word.
fn read(word: Option<&str>) -> Result<(Addressing, Option<Lease>), &'static str> {
    match word {
        None | Some("dhcp" | "on" | "any" | "") => return Ok((Addressing::Leased, None)),
        Some("off" | "none") => return Ok((Addressing::Nowhere, None)),
        _ => {}
    }
    let mut fields = word.unwrap_or("").split(':');
    let mut field = || fields.next().filter(|field| !field.is_empty());
    let (own, _, router, mask, _, _, method) = (field(), field(), field(), field(), field(), field(), field());
    match (own, method) {
        (None, None | Some("dhcp" | "on" | "any")) => return Ok((Addressing::Leased, None)),
        (None, Some("off" | "none")) => return Ok((Addressing::Nowhere, None)),
        (Some(_), None | Some("off" | "none")) => {}
        _ => return Err("the method is none of `dhcp` without an address and `off` with one"),
    }
    let parse = |text: &str| text.parse::<Ipv4Addr>();
    let own = parse(own.unwrap_or("")).map_err(|_| "the address is none of IPv4")?;
    let mask = mask.map_or(Ok(mask_of_class(own)), parse).map_err(|_| "the mask is none of IPv4")?.to_bits();
    if mask.leading_ones() + mask.trailing_zeros() != u32::BITS {
        return Err("the mask is not a row of ones and a row of zeros");
    }
    let router = router.map(parse).transpose().map_err(|_| "the router's address is none of IPv4")?;
    // As boot loaders write a setting that they do not have.
    let gateway = router.filter(|router| !router.is_unspecified());
    let mut name_servers = [None; NAME_SERVERS];
    // Linux takes two.
    for place in name_servers.iter_mut().take(2) {
        let server = field().map(parse).transpose().map_err(|_| "a name server's address is none of IPv4")?;
        *place = server.filter(|server| !(server.is_unspecified() || server.is_multicast() || server.is_broadcast()));
    }
    let address = Address { address: own, prefix: mask.leading_ones() as u8, gateway };
    if !(Address { gateway: None, ..address }).is_valid() {
        return Err("no host has this address in a network of this mask");
    }
    if !address.is_valid() {
        return Err("the router is no other host of the address's network");
    }
    Ok((Addressing::Fixed(address), Some(Lease { address, name_servers, mtu: None })))
}

/// Returns the mask of an address's class, which Linux takes if none is given.
fn mask_of_class(address: Ipv4Addr) -> Ipv4Addr {
    match address.octets()[0] {
        0..128 => [255, 0, 0, 0],
        128..192 => [255, 255, 0, 0],
        _ => [255, 255, 255, 0],
    }
    .into()
}

/// Makes the contents of `/proc/net/pnp`: what was configured, in the form of `resolv.conf`, to which
/// `/etc/resolv.conf` is a link.
#[doc(alias = "resolv.conf")]
pub(crate) fn plug_and_play() -> String {
    let mut servers_of_six = [None; NAME_SERVERS];
    let leased = STACK.lock().as_ref().and_then(|stack| {
        for (place, server) in servers_of_six.iter_mut().zip(stack.six_name_servers()) {
            *place = Some(server);
        }
        stack.lease().copied()
    });
    let mut text = match (leased, FIXED.get()) {
        (Some(lease), _) => told("DHCP", &lease),
        (None, Some(fixed)) => told("MANUAL", fixed),
        (None, None) => String::new(),
    };
    tell_servers_of_six(&mut text, &servers_of_six);
    text
}

/// Adds the name servers that routers of IPv6 have advertised, as far as there is room for them.
fn tell_servers_of_six(text: &mut String, servers: &[Option<Ipv6Addr>]) {
    let told = text.lines().filter(|line| line.starts_with("nameserver")).count();
    for server in servers.iter().flatten().take(NAME_SERVERS.saturating_sub(told)) {
        // A string takes everything.
        let _ = match server.is_unicast_link_local() {
            true => writeln!(text, "nameserver {server}%{CARD}"),
            false => writeln!(text, "nameserver {server}"),
        };
    }
}

/// Makes the contents of `/proc/net/if_inet6`: the addresses of IPv6.
pub(crate) fn addresses_of_six() -> String {
    let mut addresses: FixedVec<SixAddress, MOST_ADDRESSES> = FixedVec::new();
    if let Some(stack) = STACK.lock().as_ref() {
        addresses.extend(stack.six_addresses().take(MOST_ADDRESSES));
    }
    let mut text = String::new();
    let mut line = |address: Ipv6Addr, interface: u32, prefix: u8, flags: u8, name: &str| {
        // A string takes everything.
        let scope = scope_of(address);
        let bits = address.to_bits();
        let _ = writeln!(text, "{bits:032x} {interface:02x} {prefix:02x} {scope:02x} {flags:02x} {name:>8}");
    };
    line(Ipv6Addr::LOCALHOST, LOOPBACK, 128, address_flag::PERMANENT, "lo");
    for own in &addresses {
        line(own.address, CARD, own.prefix, flags_of(own), "eth0");
    }
    text
}

/// Makes the contents of `/proc/net/igmp`: the groups of IPv4, of which an interface has that of all hosts alone.
pub(crate) fn groups_of_four() -> String {
    // The group's bytes lie in memory in their order, and are told as a number of this machine.
    let group = u32::from_le_bytes(Ipv4Addr::new(224, 0, 0, 1).octets());
    let mut text = String::from("Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n");
    for (interface, name) in [(LOOPBACK, "lo"), (CARD, "eth0")] {
        // A string takes everything.
        let _ = writeln!(text, "{interface}\t{name:<10}:     1      V3");
        let _ = writeln!(text, "\t\t\t\t{group:08X}     1 0:00000000\t\t0");
    }
    text
}

/// Makes the contents of `/proc/net/igmp6`: the groups of IPv6, which are those of all hosts and of the own addresses.
pub(crate) fn groups_of_six() -> String {
    let mut groups: FixedVec<(Ipv6Addr, u32), MOST_ADDRESSES> = FixedVec::new();
    if let Some(stack) = STACK.lock().as_ref() {
        for own in stack.six_addresses() {
            let group = solicited_group(own.address);
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, users)) => *users += 1,
                // Without room it is left out.
                None => drop(groups.push((group, 1))),
            }
        }
    }
    let mut text = String::new();
    let mut line = |interface: u32, name: &str, group: Ipv6Addr, users: u32| {
        let _ = writeln!(text, "{interface:<4} {name:<15} {:032x} {users:>5} 00000004 0", group.to_bits());
    };
    line(LOOPBACK, "lo", ALL_NODES, 1);
    for (group, users) in groups {
        line(CARD, "eth0", group, users);
    }
    line(CARD, "eth0", ALL_NODES, 1);
    text
}

/// Most addresses of IPv6 that are told.
const MOST_ADDRESSES: usize = 8;

/// Returns the scope of an address of this machine in Linux's numbers.
fn scope_of(address: Ipv6Addr) -> u8 {
    const SITE_LOCAL: u16 = 0xfec0;
    if address.is_loopback() {
        0x10
    } else if address.is_unicast_link_local() {
        0x20
    } else if address.segments()[0] & 0xffc0 == SITE_LOCAL {
        0x40
    } else {
        0
    }
}

/// Flags of an address (`IFA_F_*` in rtnetlink(7)).
mod address_flag {
    pub(super) const DUPLICATE: u8 = 0x08;
    pub(super) const DEPRECATED: u8 = 0x20;
    pub(super) const TENTATIVE: u8 = 0x40;
    pub(super) const PERMANENT: u8 = 0x80;
}

/// Returns the flags of an address, with which it is told.
pub(super) fn flags_of(own: &SixAddress) -> u8 {
    let flags = [
        (own.is_permanent, address_flag::PERMANENT),
        (own.is_tentative || own.is_duplicate, address_flag::TENTATIVE),
        (own.is_duplicate, address_flag::DUPLICATE),
        (own.is_deprecated, address_flag::DEPRECATED),
    ];
    flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
}

fn told(method: &str, lease: &Lease) -> String {
    let Address { address, prefix, gateway } = lease.address;
    let mut text = String::new();
    // A string takes everything.
    let _ = write!(text, "#PROTO: {method}\n#ADDRESS: {address}/{prefix}\n");
    if let Some(gateway) = gateway {
        let _ = writeln!(text, "#ROUTER: {gateway}");
    }
    for server in lease.name_servers.iter().flatten() {
        let _ = writeln!(text, "nameserver {server}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_word_is_linux_s() {
        for word in [None, Some(""), Some("dhcp"), Some("on"), Some(":::::eth0:dhcp")] {
            assert_eq!(read(word), Ok((Addressing::Leased, None)), "{word:?}");
        }
        for word in ["off", "none", "::::::off"] {
            assert_eq!(read(Some(word)), Ok((Addressing::Nowhere, None)), "{word}");
        }
        let fixed = |prefix, gateway: Option<[u8; 4]>, servers: [Option<[u8; 4]>; 3]| {
            let address = Address { address: [10, 0, 2, 15].into(), prefix, gateway: gateway.map(Ipv4Addr::from) };
            let lease = Lease { address, name_servers: servers.map(|server| server.map(Ipv4Addr::from)), mtu: None };
            Ok((Addressing::Fixed(address), Some(lease)))
        };
        let router = Some([10, 0, 2, 2]);
        assert_eq!(read(Some("10.0.2.15")), fixed(8, None, [None; 3]));
        assert_eq!(read(Some("10.0.2.15::0.0.0.0:255.255.255.0")), fixed(24, None, [None; 3]));
        assert_eq!(read(Some("10.0.2.15:::::::0.0.0.0:255.255.255.255")), fixed(8, None, [None; 3]));
        assert_eq!(read(Some("10.0.2.15::10.0.2.2:255.255.255.0")), fixed(24, router, [None; 3]));
        let servers = [Some([10, 0, 2, 3]), Some([1, 1, 1, 1]), None];
        let whole = "10.0.2.15:10.0.2.9:10.0.2.2:255.255.0.0:host:eth0:off:10.0.2.3:1.1.1.1:pool";
        assert_eq!(read(Some(whole)), fixed(16, router, servers));
        for wrong in [
            "10.0.2",
            "x",
            "10.0.2.15:::255.0.255.0",
            "10.0.2.15:::y",
            "10.0.2.15::z",
            "10.0.2.15::::::dhcp",
            "::::::bootp",
            "10.0.2.15:::::::q",
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "10.0.2.255:::255.255.255.0",
            "10.0.2.15::10.0.2.15:255.255.255.0",
            "10.0.2.15::10.0.3.1:255.255.255.0",
            "10.0.2.15::224.0.0.1:255.255.255.0",
            "10.0.2.15::255.255.255.255:0.0.0.0",
        ] {
            assert!(read(Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_boot_words_for_six_are_linux_s() {
        assert_eq!(addressing_of_six(None, None), SixAddressing::Automatic);
        assert_eq!(addressing_of_six(Some("0"), Some("1")), SixAddressing::Automatic);
        assert_eq!(addressing_of_six(Some("x"), Some("x")), SixAddressing::Automatic);
        assert_eq!(addressing_of_six(None, Some("0")), SixAddressing::LinkLocal);
        assert_eq!(addressing_of_six(Some("1"), Some("1")), SixAddressing::Off);
    }

    #[test]
    fn three_name_servers_are_told_at_most() {
        let [near, far]: [Ipv6Addr; 2] = ["fe80::3", "fec0::3"].map(|server| server.parse().unwrap());
        let mut text = String::new();
        tell_servers_of_six(&mut text, &[Some(near), Some(far), None]);
        assert_eq!(text, "nameserver fe80::3%2\nnameserver fec0::3\n");
        let mut text = String::from("#PROTO: DHCP\nnameserver 10.0.2.3\nnameserver 10.0.2.4\n");
        tell_servers_of_six(&mut text, &[Some(far), Some(near), None]);
        assert!(text.ends_with("10.0.2.4\nnameserver fec0::3\n"), "{text}");
    }

    #[test]
    fn scopes_and_flags_are_linux_s() {
        for (address, scope) in
            [("::1", 0x10), ("fe80::1", 0x20), ("fec0::1", 0x40), ("fd00::1", 0), ("2001:db8::1", 0)]
        {
            assert_eq!(scope_of(address.parse().unwrap()), scope, "{address}");
        }
        let (address, prefix) = (Ipv6Addr::LOCALHOST, 64);
        let [is_tentative, is_duplicate, is_deprecated, is_permanent] = [false; 4];
        let plain = SixAddress { address, prefix, is_tentative, is_duplicate, is_deprecated, is_permanent };
        assert_eq!(flags_of(&plain), 0);
        assert_eq!(flags_of(&SixAddress { is_permanent: true, is_tentative: true, ..plain }), 0xc0);
        assert_eq!(flags_of(&SixAddress { is_duplicate: true, is_deprecated: true, ..plain }), 0x68);
    }

    #[test]
    fn what_was_configured_reads_as_resolv_conf() {
        let address = Address { address: [10, 0, 2, 15].into(), prefix: 24, gateway: Some([10, 0, 2, 2].into()) };
        let lease = Lease { address, name_servers: [Some([10, 0, 2, 3].into()), None, None], mtu: None };
        let expected = "#PROTO: DHCP\n#ADDRESS: 10.0.2.15/24\n#ROUTER: 10.0.2.2\nnameserver 10.0.2.3\n";
        assert_eq!(told("DHCP", &lease), expected);
        let bare = Lease { address: Address { gateway: None, ..address }, name_servers: [None; 3], mtu: None };
        assert_eq!(told("MANUAL", &bare), "#PROTO: MANUAL\n#ADDRESS: 10.0.2.15/24\n");
    }
}
