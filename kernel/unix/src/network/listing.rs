//! The tables of sockets in `/proc/net`, in Linux's format (proc_net_tcp.rst).
//!
//! A line is a step. Sockets of the network have no inode numbers, so that programs cannot tell whose they are.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use network::{ListedSocket, SocketList};

use crate::network::stack::with_stack;

/// A table: its lists, one after the other, and the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketTable {
    lists: &'static [SocketList],
    is_six: bool,
}

const STREAMS: &[SocketList] = &[SocketList::Listeners, SocketList::Connections];
const DATAGRAMS: &[SocketList] = &[SocketList::Datagrams];

/// `/proc/net/tcp`.
pub(crate) const TCP: SocketTable = SocketTable { lists: STREAMS, is_six: false };
/// `/proc/net/tcp6`.
pub(crate) const TCP6: SocketTable = SocketTable { lists: STREAMS, is_six: true };
/// `/proc/net/udp`.
pub(crate) const UDP: SocketTable = SocketTable { lists: DATAGRAMS, is_six: false };
/// `/proc/net/udp6`.
pub(crate) const UDP6: SocketTable = SocketTable { lists: DATAGRAMS, is_six: true };

impl SocketTable {
    /// Returns the text from a cursor on, a line or nothing, and the cursor to go on from. The cursor is 0 at the
    /// beginning; then it has the number of a list and an index there.
    pub(crate) fn line(self, cursor: u64) -> (Vec<u8>, Option<u64>) {
        if cursor == 0 {
            return (self.heading().into_bytes(), Some(1 << 32));
        }
        let (number, from) = ((cursor >> 32) as usize - 1, cursor as u32);
        let Some(list) = self.lists.get(number) else { return (Vec::new(), None) };
        let Ok((listed, next)) = with_stack(|stack, _| Ok(stack.listed(*list, from))) else {
            return (Vec::new(), None);
        };
        let line = listed.filter(|listed| listed.local.address.is_ipv6() == self.is_six);
        let line = line.map_or_else(String::new, |listed| self.show(&listed, next.unwrap_or(0)));
        let cursor = match next {
            Some(next) => (number as u64 + 1) << 32 | u64::from(next),
            None => (number as u64 + 2) << 32,
        };
        (line.into_bytes(), Some(cursor))
    }

    fn heading(self) -> String {
        let (local, remote) = if self.is_six {
            ("local_address                        ", "remote_address                       ")
        } else {
            ("local_address", "rem_address  ")
        };
        format!("  sl  {local} {remote} st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n")
    }

    fn show(self, listed: &ListedSocket, number: u32) -> String {
        let unspecified = if self.is_six { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { [0, 0, 0, 0].into() };
        let remote = listed.remote.unwrap_or(SocketAddr::new(unspecified, 0));
        format!(
            "{number:4}: {} {} {:02X} {:08X}:{:08X} 00:00000000 00000000     0        0 0 1 0000000000000000\n",
            show_end(listed.local.address),
            show_end(remote),
            listed.state as u8,
            listed.unsent,
            listed.unread,
        )
    }
}

/// Returns an end as Linux shows it: the words of its address as this machine reads them from memory.
fn show_end(end: SocketAddr) -> String {
    let words = |octets: &[u8]| {
        let words = octets.as_chunks().0.iter();
        words.map(|word| format!("{:08X}", u32::from_le_bytes(*word))).collect::<String>()
    };
    let address = match end.ip() {
        IpAddr::V4(address) => words(&address.octets()),
        IpAddr::V6(address) => words(&address.octets()),
    };
    format!("{address}:{:04X}", end.port())
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{self, bytes_of_address};

    use super::*;
    use crate::testing::{Program, run};

    fn text(program: &mut Program, path: &[u8]) -> String {
        let path = program.store(path);
        let file = program.call(SystemCall::Open, [0, path, 0, 0]).unwrap();
        let mut text = Vec::new();
        loop {
            match program.read_from(file, 4000).unwrap() {
                bytes if bytes.is_empty() => break,
                bytes => text.extend(bytes),
            }
        }
        program.close(file).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn ends_are_shown_in_the_order_of_this_machine() {
        assert_eq!(show_end(([127, 0, 0, 1], 80).into()), "0100007F:0050");
        assert_eq!(show_end((Ipv6Addr::LOCALHOST, 8080).into()), "00000000000000000000000001000000:1F90");
    }

    #[test]
    fn sockets_are_listed_in_the_table_of_their_family() {
        run(|program| {
            let bind = |program: &mut Program, family: u16, kind: u32, address: &str| {
                let socket = program.call(SystemCall::Socket, [family as usize, kind as usize, 0]).unwrap();
                let (bytes, length) = bytes_of_address(address.parse().unwrap());
                let place = program.store(&bytes[..length]);
                assert_eq!(program.call(SystemCall::Bind, [socket, place, length]), Ok(0));
                (socket, place, length)
            };
            let (listener, place, length) = bind(program, types::AF_INET, types::SOCK_STREAM, "127.0.0.1:6001");
            assert_eq!(program.call(SystemCall::Listen, [listener, 5]), Ok(0));
            let client = program.call(SystemCall::Socket, [2, types::SOCK_STREAM as usize, 0]).unwrap();
            assert_eq!(program.call(SystemCall::Connect, [client, place, length]), Ok(0));
            let six = bind(program, types::AF_INET6, types::SOCK_STREAM, "[::1]:6002").0;
            assert_eq!(program.call(SystemCall::Listen, [six, 5]), Ok(0));
            bind(program, types::AF_INET, types::SOCK_DGRAM, "0.0.0.0:6003");
            bind(program, types::AF_INET6, types::SOCK_DGRAM, "[::]:6004");
            let tables = [b"tcp\0".as_slice(), b"tcp6\0", b"udp\0", b"udp6\0"]
                .map(|name| text(program, &[b"/proc/net/", name].concat()));
            for (table, wanted) in tables.iter().zip([
                [" 0100007F:1771 00000000:0000 0A ", " 0100007F:1771 0100007F:"],
                [" 00000000000000000000000001000000:1772 00000000000000000000000000000000:0000 0A "; 2],
                [" 00000000:1773 00000000:0000 07 "; 2],
                [" 00000000000000000000000000000000:1774 00000000000000000000000000000000:0000 07 "; 2],
            ]) {
                assert!(wanted.iter().all(|line| table.contains(line)), "{wanted:?} {table}");
                assert!(table.starts_with("  sl  local_address "));
            }
            assert!(!tables[0].contains(":1772 ") && !tables[1].contains(":1771 "));
            assert!(!tables[2].contains(":1774 ") && !tables[3].contains(":1773 "));
        });
    }
}
