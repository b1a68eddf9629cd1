//! Names of core files: the pattern, and the path that it makes for a process (core(5)).

use alloc::vec::Vec;

use abi_unix::Errno;
use abi_unix::trace::ProgramName;
use abi_unix::types::{SYSTEM_NAME_FIELD, limit};
use heapless::String;
use platform::println;
use spin::Mutex;

use crate::process::Process;
use crate::process::accounts::{Account, ResourceLimit, UNLIMITED};
use crate::process::user::LONGEST_PATH;
use crate::time;

/// Size of the longest pattern in bytes (Linux: `CORENAME_MAX_SIZE`, with its NUL).
const LONGEST_PATTERN: usize = 127;

/// The pattern of all names; `core` until one is set.
static PATTERN: Mutex<Option<String<LONGEST_PATTERN>>> = Mutex::new(None);

/// Returns the pattern.
pub(crate) fn pattern() -> String<LONGEST_PATTERN> {
    PATTERN.lock().clone().unwrap_or_else(|| {
        let mut name = String::new();
        let _ = name.push_str("core");
        name
    })
}

/// Sets the pattern. `EINVAL` for a pipe to a program, for text that is no UTF-8 or has a NUL, and for too long a one.
pub(crate) fn set_pattern(bytes: &[u8]) -> Result<(), Errno> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    if text.starts_with('|') || text.contains('\0') {
        return Err(Errno::EINVAL);
    }
    let mut name = String::new();
    name.push_str(text).map_err(|_| Errno::EINVAL)?;
    *PATTERN.lock() = Some(name);
    Ok(())
}

/// Reads the boot command line: with `core=PATTERN` processes have no limit of core files, and this is their names'
/// pattern.
pub(crate) fn start(word: Option<&str>) {
    let Some(word) = word else { return };
    match set_pattern(word.as_bytes()) {
        Ok(()) => Account::first().set_setting(limit::CORE as usize, ResourceLimit::both(UNLIMITED)),
        Err(_) => println!("core: `{word}` is no pattern of at most {LONGEST_PATTERN} bytes that names a file"),
    }
}

/// Returns the path of a process's core file; empty if the pattern is. The signal and the number of the thread that has
/// met it are parts of it.
pub(super) fn path(process: &Process, signal: u8, thread: u32) -> Result<Vec<u8>, Errno> {
    let limit = process.account.setting(limit::CORE as usize).soft as u64;
    let hostname = &crate::system_name()[SYSTEM_NAME_FIELD..][..SYSTEM_NAME_FIELD];
    let hostname = hostname.split(|byte| *byte == 0).next().unwrap_or_default();
    let now_s = (time::epoch_ns() + time::now_ns()) / 1_000_000_000;
    let name = ProgramName::from_words(process.name());
    let name = name.as_bytes();
    let name = &name[..name.len().min(15)];
    let identity = process.identity_value();
    let (user, group) = (identity.users.real, identity.groups.real);
    let values = Values { process: process.id, user, group, thread, signal, now_s, limit, name, hostname };
    expand(pattern().as_bytes(), &values)
}

/// The values of a pattern's parts.
struct Values<'a> {
    process: u32,
    user: u32,
    group: u32,
    thread: u32,
    signal: u8,
    now_s: u64,
    limit: u64,
    name: &'a [u8],
    hostname: &'a [u8],
}

/// Puts the values into a pattern. As on Linux, a part that means nothing is left out, and a name has `!` for each of
/// its slashes, so that it leads to no other directory.
fn expand(pattern: &[u8], values: &Values<'_>) -> Result<Vec<u8>, Errno> {
    let mut path = Vec::new();
    let mut bytes = pattern.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            add(&mut path, &[byte])?;
            continue;
        }
        match bytes.next() {
            None => break,
            Some(b'%') => add(&mut path, b"%")?,
            Some(b'p' | b'P') => add_number(&mut path, values.process.into())?,
            Some(b'i' | b'I') => add_number(&mut path, values.thread.into())?,
            Some(b's') => add_number(&mut path, values.signal.into())?,
            Some(b't') => add_number(&mut path, values.now_s)?,
            Some(b'c') => add_number(&mut path, values.limit)?,
            Some(b'u') => add_number(&mut path, values.user.into())?,
            Some(b'g') => add_number(&mut path, values.group.into())?,
            Some(b'd') => add_number(&mut path, 1)?,
            Some(b'h') => add_name(&mut path, values.hostname)?,
            Some(b'e' | b'f') => add_name(&mut path, values.name)?,
            Some(_) => {}
        }
    }
    Ok(path)
}

fn add(path: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Errno> {
    if path.len() + bytes.len() >= LONGEST_PATH {
        return Err(Errno::ENAMETOOLONG);
    }
    path.try_reserve(bytes.len()).map_err(|_| Errno::ENOMEM)?;
    path.extend_from_slice(bytes);
    Ok(())
}

fn add_name(path: &mut Vec<u8>, name: &[u8]) -> Result<(), Errno> {
    // A name of dots alone would be a directory's.
    let is_dots = path.last().is_none_or(|last| *last == b'/') && name.iter().all(|byte| *byte == b'.');
    name.iter().try_for_each(|byte| add(path, &[if *byte == b'/' || is_dots { b'!' } else { *byte }]))
}

fn add_number(path: &mut Vec<u8>, number: u64) -> Result<(), Errno> {
    use core::fmt::Write as _;
    let mut text = String::<20>::new();
    let _ = write!(text, "{number}");
    add(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALUES: Values<'_> = Values {
        process: 7,
        user: 8,
        group: 9,
        thread: 65543,
        signal: 11,
        now_s: 1_700_000_000,
        limit: u64::MAX,
        name: b"a/b",
        hostname: b"cops",
    };

    fn made(pattern: &str) -> std::string::String {
        std::string::String::from_utf8(expand(pattern.as_bytes(), &VALUES).unwrap()).unwrap()
    }

    #[test]
    fn patterns_have_linux_s_parts() {
        for (pattern, path) in [
            ("core", "core"),
            ("core.%p", "core.7"),
            ("/cores/%e.%p.%s", "/cores/a!b.7.11"),
            ("%i-%t-%h-%u-%g", "65543-1700000000-cops-8-9"),
            ("%%p%", "%p"),
            ("%qx", "x"),
            ("%c", "18446744073709551615"),
            ("", ""),
        ] {
            assert_eq!(made(pattern), path, "{pattern}");
        }
        let dots = Values { name: b"..", ..VALUES };
        assert_eq!(expand(b"%e", &dots).unwrap(), b"!!");
        assert_eq!(expand(b"/cores/%e", &dots).unwrap(), b"/cores/!!");
        assert_eq!(expand(b"core.%e", &dots).unwrap(), b"core...");
    }

    proptest! {
        #![proptest_config(property::cases(64))]

        /// No pattern fails, and no value leads to another directory than the pattern's.
        #[test]
        fn values_add_no_slash(pattern in "[%a-z/.]{0,127}", name in prop::collection::vec(1u8.., 0..16)) {
            let values = Values { name: &name, ..VALUES };
            let path = expand(pattern.as_bytes(), &values).unwrap();
            let slashes = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'/').count();
            prop_assert!(slashes(&path) <= slashes(pattern.as_bytes()));
        }
    }
}
