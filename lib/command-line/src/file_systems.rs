//! The file systems that are mounted at the start, as `/etc/fstab` lists them (fstab(5)).

use alloc::string::String;
use alloc::vec::Vec;

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFileSystem {
    /// The device, or any name for a file system without one.
    pub device: String,
    /// The directory on which it is mounted.
    pub directory: String,
    /// Its kind, as `ext4` or `tmpfs`.
    pub kind: String,
    /// Whether it is not changed (`ro`).
    pub is_read_only: bool,
    /// Whether the device is a directory or another file that is mounted already.
    pub bind: Bind,
    /// Options that are the file system's own, with commas between them.
    pub options: String,
}

/// The part of a file that is mounted already that a mount shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// Nothing: it shows a file system of its own.
    #[default]
    None,
    /// The file, without what is mounted below it (`bind`).
    File,
    /// The file, with all that is mounted below it (`rbind`).
    All,
}

/// Options of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether nothing is changed by it (`ro`).
    pub is_read_only: bool,
    /// Whether a mount that is there is changed (`remount`).
    pub is_remount: bool,
    /// Whether it shows a file that is mounted already.
    pub bind: Bind,
    /// The file system's own options, with commas between them.
    pub own: String,
}

impl Options {
    /// Reads options with commas between them.
    #[must_use]
    pub fn of(text: &str) -> Options {
        let mut options = Options::default();
        let mut own = Vec::new();
        for option in text.split(',') {
            match option {
                "ro" => options.is_read_only = true,
                "rw" => options.is_read_only = false,
                "remount" => options.is_remount = true,
                "bind" => options.bind = Bind::File,
                "rbind" => options.bind = Bind::All,
                option if WITHOUT_MEANING.split(' ').any(|other| other == option) => {}
                option => own.push(option),
            }
        }
        options.own = own.join(",");
        options
    }
}

/// Options of a mount that say nothing here: the usual state, and its user and time.
const WITHOUT_MEANING: &str = "defaults auto nofail nouser async exec suid dev atime relatime noatime nodiratime \
    errors=remount-ro discard nodiscard _netdev";

/// Reads a list; returns the file systems that are mounted at the start, in their order: neither the root, which is
/// there, nor what is marked with `noauto`, nor space for swapping. Lines with less than three fields are left out.
pub fn listed(text: &str) -> Vec<ListedFileSystem> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<ListedFileSystem> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let mut fields = line.split_ascii_whitespace();
    let (device, directory, kind) = (unescaped(fields.next()?), unescaped(fields.next()?), fields.next()?);
    let all = fields.next().unwrap_or("defaults");
    if directory == "/" || !directory.starts_with('/') || kind == "swap" || all.split(',').any(|it| it == "noauto") {
        return None;
    }
    let Options { is_read_only, bind, own: options, .. } = Options::of(all);
    Some(ListedFileSystem { device, directory, kind: kind.into(), is_read_only, bind, options })
}

/// Replaces a backslash and three octal digits by the character that they mean: fields have no spaces.
fn unescaped(field: &str) -> String {
    let mut text = String::new();
    let mut rest = field;
    while let Some((before, behind)) = rest.split_once('\\') {
        text.push_str(before);
        let code = behind.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii);
        match code {
            Some(code) => {
                text.push(code.into());
                rest = &behind[3..];
            }
            None => {
                text.push('\\');
                rest = behind;
            }
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(device: &str, directory: &str, kind: &str, is_read_only: bool, options: &str) -> ListedFileSystem {
        let [device, directory, kind, options] = [device, directory, kind, options].map(String::from);
        ListedFileSystem { device, directory, kind, is_read_only, bind: Bind::None, options }
    }

    #[test]
    fn lines_are_read_as_mount_reads_them() {
        let text = "# device directory kind options\n\n/dev/vda / ext4 errors=remount-ro 0 1\n\
            /dev/vda1\t/srv  ext4 ro,noatime 0 2\n  /dev/vdb /with\\040space ext4\nnone /tmp tmpfs size=1M,mode=700\n\
            /dev/vdc none swap sw 0 0\n/dev/vdd /later ext4 defaults,noauto\nproc /proc proc\nshort /line\n\
            /srv/a /srv/b none bind,ro\n/srv /all none rbind 0 0\n";
        let expected = [
            of("/dev/vda1", "/srv", "ext4", true, ""),
            of("/dev/vdb", "/with space", "ext4", false, ""),
            of("none", "/tmp", "tmpfs", false, "size=1M,mode=700"),
            of("proc", "/proc", "proc", false, ""),
            ListedFileSystem { bind: Bind::File, ..of("/srv/a", "/srv/b", "none", true, "") },
            ListedFileSystem { bind: Bind::All, ..of("/srv", "/all", "none", false, "") },
        ];
        assert_eq!(listed(text), expected);
        let options = Options { is_remount: true, is_read_only: true, own: "size=1M".into(), ..Options::default() };
        assert_eq!(Options::of("rw,remount,ro,size=1M"), options, "the last of two holds");
        assert_eq!(unescaped("a\\134b\\09\\777\\"), "a\\b\\09\\777\\");
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn any_text_is_read(text in "[ a-z/\\\\0-9#,=\u{e9}\n\t]{0,80}") {
            for found in listed(&text) {
                prop_assert!(found.directory.starts_with('/') && found.directory != "/");
            }
        }
    }
}
