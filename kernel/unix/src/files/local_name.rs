//! Names of local sockets as programs write and read them (unix(7)).

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::types::{AF_UNIX, LONGEST_LOCAL_NAME};
use abi_unix::{Errno, types};

use crate::process::accounts::{Account, Charge, Resource};

/// Bytes of kernel memory for an entry of an ordered table, of which nodes may be half empty.
pub(super) const ENTRY: usize = 64;

/// The name of a local socket, which others may have from it: connections of a listener, messages of a sender.
pub(crate) struct LocalName {
    /// A path with a NUL behind it, or an abstract name with the NUL before it.
    bytes: Vec<u8>,
    _charge: Charge,
}

/// Bytes of an address of the family with the longest name: a path of [`LONGEST_LOCAL_NAME`] bytes, and its NUL.
pub(crate) const LONGEST_LOCAL_ADDRESS: usize = 2 + LONGEST_LOCAL_NAME + 1;

impl LocalName {
    /// Makes a name of these bytes, which this account pays for. `ENOMEM`.
    pub(crate) fn new(account: &Arc<Account>, name: &[u8]) -> Result<Arc<LocalName>, Errno> {
        let is_path = name.first().is_some_and(|byte| *byte != 0);
        let length = name.len() + usize::from(is_path);
        let charge = account.charge(Resource::Memory, size_of::<LocalName>() + length + 2 * ENTRY)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        bytes.extend_from_slice(name);
        bytes.resize(length, 0);
        Ok(Arc::new(LocalName { bytes, _charge: charge }))
    }

    /// Returns the bytes after the family.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Writes the address of a socket with this name, or with none, to a buffer; returns its length.
pub(crate) fn write_address(name: Option<&LocalName>, buffer: &mut [u8; LONGEST_LOCAL_ADDRESS]) -> usize {
    let bytes = name.map_or(&[][..], LocalName::bytes);
    buffer[..2].copy_from_slice(&AF_UNIX.to_le_bytes());
    buffer[2..2 + bytes.len()].copy_from_slice(bytes);
    2 + bytes.len()
}

/// A name as a program writes it.
pub(crate) enum GivenName {
    /// `AF_UNSPEC`: none.
    Unspecified,
    /// The family alone: any name.
    Automatic,
    /// An abstract name, with the NUL before it.
    Abstract(Vec<u8>),
    /// A path.
    Path(Vec<u8>),
}

impl GivenName {
    /// Reads a name of these bytes, of which there were so many. `EINVAL`, `ENOMEM`.
    pub(crate) fn parse(bytes: &[u8], size: usize) -> Result<GivenName, Errno> {
        let family = bytes.first_chunk().map(|family| u16::from_le_bytes(*family)).ok_or(Errno::EINVAL)?;
        if family == types::AF_UNSPEC {
            return Ok(GivenName::Unspecified);
        }
        if family != AF_UNIX || size > 2 + LONGEST_LOCAL_NAME {
            return Err(Errno::EINVAL);
        }
        let name = &bytes[2..];
        let is_abstract = match name.first() {
            None => return Ok(GivenName::Automatic),
            Some(first) => *first == 0,
        };
        let end = name.iter().position(|byte| *byte == 0).filter(|_| !is_abstract).unwrap_or(name.len());
        let mut copy = Vec::new();
        copy.try_reserve_exact(end).map_err(|_| Errno::ENOMEM)?;
        copy.extend_from_slice(&name[..end]);
        Ok(if is_abstract { GivenName::Abstract(copy) } else { GivenName::Path(copy) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(bytes: &[u8]) -> Result<GivenName, Errno> {
        GivenName::parse(bytes, bytes.len())
    }

    /// unix(7): a path ends at a NUL, an abstract name has all bytes of the address.
    #[test]
    fn names_are_read_as_on_linux() {
        assert!(matches!(given(b"\x01\0"), Ok(GivenName::Automatic)));
        assert!(matches!(given(b"\0\0anything"), Ok(GivenName::Unspecified)));
        assert!(matches!(given(b"\x01\0/tmp/a\0rest"), Ok(GivenName::Path(path)) if path == b"/tmp/a"));
        assert!(matches!(given(b"\x01\0\0a\0b\0"), Ok(GivenName::Abstract(name)) if name == b"\0a\0b\0"));
        for bad in [&b""[..], b"\x01", b"\x02\0\0\x50"] {
            assert!(matches!(given(bad), Err(Errno::EINVAL)), "{bad:?}");
        }
        let longest = [&b"\x01\0"[..], &[b'x'; LONGEST_LOCAL_NAME]].concat();
        assert!(matches!(given(&longest), Ok(GivenName::Path(path)) if path.len() == LONGEST_LOCAL_NAME));
        assert!(matches!(GivenName::parse(&longest, longest.len() + 1), Err(Errno::EINVAL)));
    }

    /// A name that is written is read again, for every length.
    #[test]
    fn names_are_written_as_they_are_read() {
        let account = Account::of_the_first();
        let mut room = [0xff; LONGEST_LOCAL_ADDRESS];
        assert_eq!(write_address(None, &mut room), 2);
        assert_eq!(room[..2], AF_UNIX.to_le_bytes());
        for length in 1..=LONGEST_LOCAL_NAME {
            for first in [b'/', 0] {
                let mut bytes = vec![b'n'; length];
                bytes[0] = first;
                let before = account.used(Resource::Memory);
                let name = LocalName::new(&account, &bytes).unwrap();
                let size = write_address(Some(&name), &mut room);
                // The NUL behind a path counts.
                assert_eq!(size, 2 + length + usize::from(first != 0));
                match GivenName::parse(&room[..size.min(2 + LONGEST_LOCAL_NAME)], size.min(2 + LONGEST_LOCAL_NAME)) {
                    Ok(GivenName::Path(path)) => assert_eq!((path, first), (bytes, b'/')),
                    Ok(GivenName::Abstract(name)) => assert_eq!((name, first), (bytes, 0)),
                    _ => panic!("{length}"),
                }
                assert!(account.used(Resource::Memory) - before > length);
                drop(name);
                assert_eq!(account.used(Resource::Memory), before);
            }
        }
    }
}
