//! Answers to programs that ask for interfaces by `ioctl` on a socket of any family (netdevice(7)).

use core::net::{Ipv4Addr, SocketAddr};

use abi_unix::Errno;
use abi_unix::types::{bytes_of_address, interface_control as command, packet};

use crate::network::addressing::{CARD, LOOPBACK, NAME_OF_CARD};
use crate::network::netlink::NetworkPicture;
use crate::process::user::Caller;

const NAME_OF_LOOPBACK: &[u8] = b"lo\0";
/// Flags of interfaces (`IFF_UP` and its kin): up and running; with the other hosts of a network.
const UP: u16 = 1 | 0x40;
const ALONE: u16 = 8;
const AMONG_OTHERS: u16 = 2 | 0x1000;
const MTU_OF_LOOPBACK: u32 = 65536;
const HARDWARE: usize = 6;

/// An interface.
struct Interface {
    index: u32,
    /// With the zero at its end.
    name: &'static [u8],
    flags: u16,
    kind: u16,
    hardware: [u8; HARDWARE],
    mtu: u32,
    /// Its address of IPv4, with the length of the network's prefix.
    address: Option<(Ipv4Addr, u8)>,
}

impl Interface {
    /// Returns the interface that a test chooses.
    fn find(is_it: impl Fn(u32, &[u8]) -> bool) -> Option<Interface> {
        if is_it(LOOPBACK, NAME_OF_LOOPBACK) {
            return Some(Interface {
                index: LOOPBACK,
                name: NAME_OF_LOOPBACK,
                flags: UP | ALONE,
                kind: packet::LOOPBACK,
                hardware: [0; HARDWARE],
                mtu: MTU_OF_LOOPBACK,
                address: Some((Ipv4Addr::LOCALHOST, 8)),
            });
        }
        let picture = NetworkPicture::take();
        let (hardware, mtu) = picture.card.filter(|_| is_it(CARD, NAME_OF_CARD))?;
        Some(Interface {
            index: CARD,
            name: NAME_OF_CARD,
            flags: UP | AMONG_OTHERS,
            kind: packet::ETHERNET,
            hardware,
            mtu,
            address: picture.four.map(|four| (four.address, four.prefix)),
        })
    }
}

/// Succeeds if there is an interface with this number; else `ENODEV`.
pub(super) fn require(index: u32) -> Result<(), Errno> {
    Interface::find(|other, _| other == index).map(drop).ok_or(Errno::ENODEV)
}

/// Returns the kind and the hardware address of the interface with this number, if there is one.
pub(super) fn hardware_of(index: u32) -> Option<(u16, [u8; HARDWARE])> {
    Interface::find(|other, _| other == index).map(|found| (found.kind, found.hardware))
}

/// Returns whether a command of `ioctl` is about interfaces.
pub(crate) fn is_known(asked: u32) -> bool {
    matches!(
        asked,
        command::GET_NAME
            | command::GET_FLAGS
            | command::GET_ADDRESS
            | command::GET_BROADCAST
            | command::GET_MASK
            | command::GET_MTU
            | command::GET_HARDWARE
            | command::GET_INDEX
    )
}

/// Performs such a command. `ENODEV` if there is no such interface.
#[cold]
pub(crate) fn control(caller: &dyn Caller, asked: u32, argument: usize) -> Result<usize, Errno> {
    let mut request = [0; command::SIZE];
    caller.copy_in(argument, &mut request)?;
    let (name, data) = request.split_at_mut(command::NAME);
    if asked == command::GET_NAME {
        let index = u32::from_le_bytes([data[0], data[1], data[2], data[3]]);
        let found = Interface::find(|other, _| other == index).ok_or(Errno::ENODEV)?;
        name.fill(0);
        name[..found.name.len()].copy_from_slice(found.name);
        return caller.copy_out(argument, &request).map(|()| 0);
    }
    // As on Linux, what is behind the longest name does not count.
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(command::NAME - 1);
    let wanted = &name[..length];
    let found = Interface::find(|_, name| name.strip_suffix(b"\0") == Some(wanted)).ok_or(Errno::ENODEV)?;
    match asked {
        command::GET_FLAGS => data[..2].copy_from_slice(&found.flags.to_le_bytes()),
        command::GET_MTU => data[..4].copy_from_slice(&found.mtu.to_le_bytes()),
        command::GET_INDEX => data[..4].copy_from_slice(&found.index.to_le_bytes()),
        command::GET_HARDWARE => {
            data[..2].copy_from_slice(&found.kind.to_le_bytes());
            data[2..2 + HARDWARE].copy_from_slice(&found.hardware);
        }
        _ => {
            let (address, prefix) = found.address.ok_or(Errno::EADDRNOTAVAIL)?;
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            let told = match asked {
                command::GET_MASK => Ipv4Addr::from_bits(mask),
                command::GET_BROADCAST if found.flags & AMONG_OTHERS == 0 => Ipv4Addr::UNSPECIFIED,
                command::GET_BROADCAST => Ipv4Addr::from_bits(address.to_bits() | !mask),
                _ => address,
            };
            let (bytes, length) = bytes_of_address(SocketAddr::new(told.into(), 0));
            data[..length].copy_from_slice(&bytes[..length]);
        }
    }
    caller.copy_out(argument, &request).map(|()| 0)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::run;

    #[test]
    fn interfaces_are_known_by_name_and_number() {
        run(|program| {
            let (local, _) = program.socket_pair(1);
            let datagrams = program.call(SystemCall::Socket, [2, 2, 0]).unwrap();
            for socket in [local, datagrams] {
                let place = program.place(command::SIZE);
                let ask = |program: &mut crate::testing::Program, name: &[u8], asked: u32| {
                    program.write(place, &[0; command::SIZE]);
                    program.write(place, name);
                    let result = program.call(SystemCall::DeviceControl, [socket, asked as usize, place]);
                    result.map(|_| program.read(place + command::NAME, 8))
                };
                assert_eq!(ask(program, b"lo", command::GET_INDEX), Ok(vec![1, 0, 0, 0, 0, 0, 0, 0]));
                assert_eq!(ask(program, b"lo", command::GET_FLAGS), Ok(vec![0x49, 0, 0, 0, 0, 0, 0, 0]));
                assert_eq!(ask(program, b"lo", command::GET_MTU), Ok(vec![0, 0, 1, 0, 0, 0, 0, 0]));
                assert_eq!(ask(program, b"lo", command::GET_ADDRESS), Ok(vec![2, 0, 0, 0, 127, 0, 0, 1]));
                assert_eq!(ask(program, b"lo", command::GET_MASK), Ok(vec![2, 0, 0, 0, 255, 0, 0, 0]));
                assert_eq!(ask(program, b"lo", command::GET_BROADCAST), Ok(vec![2, 0, 0, 0, 0, 0, 0, 0]));
                assert_eq!(ask(program, b"lo", command::GET_HARDWARE), Ok(vec![4, 3, 0, 0, 0, 0, 0, 0]));
                assert_eq!(ask(program, b"lo", 0x8999), Err(Errno::ENOTTY));
                for name in [&b"l"[..], b"lo1", b"", b"eth0", b"a-name-without-an-end-that-is-long"] {
                    assert_eq!(ask(program, name, command::GET_INDEX), Err(Errno::ENODEV), "{name:?}");
                }
                let ask = |program: &mut crate::testing::Program, index: u32| {
                    program.write(place + command::NAME, &index.to_le_bytes());
                    let result = program.call(SystemCall::DeviceControl, [socket, 0x8910, place]);
                    result.map(|_| program.read(place, 3))
                };
                assert_eq!(ask(program, 1), Ok(b"lo\0".to_vec()));
                assert_eq!(ask(program, 2), Err(Errno::ENODEV));
                let call = [socket, command::GET_INDEX as usize, 0x10];
                assert_eq!(program.call(SystemCall::DeviceControl, call), Err(Errno::EFAULT));
            }
        });
    }
}
