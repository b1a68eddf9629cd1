//! Images of disks with a volume of ext4, made by Debian's `mke2fs`: empty, or with packages of Debian.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, bail};
use ext4::{Access, Device, DeviceFailed, NewFile, Stamp, Volume, kind};
use filesystem::cpio::{self, EntryKind};

use crate::children;
use crate::cli::{self, ImageAction};
use crate::context::Context;
use crate::debian::Root;
use crate::own;
use crate::toolchain::{self, Item};

/// Folder of the programs that make volumes, which is not on every user's path.
const PROGRAMS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Room that an image has beside the files of packages.
const ROOM: u64 = 256 << 20;

/// Returns the path of a program of e2fsprogs.
fn program(name: &str) -> Option<PathBuf> {
    PROGRAMS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

/// Returns whether the programs that make and check volumes are there.
pub fn tools_are_there() -> bool {
    program("mke2fs").is_some() && program("e2fsck").is_some()
}

/// Makes an image of so many bytes with a volume, empty or with the files of a folder.
///
/// # Errors
///
/// There is no `mke2fs`, or it fails.
pub fn make(image: &Path, bytes: u64, folder: Option<&Path>) -> anyhow::Result<()> {
    make_with(image, bytes, folder, "root_owner=0:0")
}

/// Makes an image as [`make`] does, in which Linux has nothing left to do when it is mounted first.
///
/// # Errors
///
/// As of [`make`].
pub fn make_initialised(image: &Path, bytes: u64, folder: Option<&Path>) -> anyhow::Result<()> {
    make_with(image, bytes, folder, "root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0")
}

fn make_with(image: &Path, bytes: u64, folder: Option<&Path>, options: &str) -> anyhow::Result<()> {
    let Some(mke2fs) = program("mke2fs") else {
        bail!(
            "there is no mke2fs. On Debian, run this and try again:\n    {}",
            toolchain::install_command(&[Item::E2fsprogs])
        );
    };
    if let Some(parent) = image.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    let file = std::fs::File::create(image).with_context(|| format!("cannot make {}", image.display()))?;
    file.set_len(bytes)?;
    let mut command = children::command(mke2fs);
    // Blocks of a page, also on small volumes: each page of a file is one request.
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-E", options]);
    if let Some(folder) = folder {
        command.arg("-d").arg(folder);
    }
    let made = command.arg(image).output().context("cannot run mke2fs")?;
    if !made.status.success() {
        bail!("mke2fs: {}", String::from_utf8_lossy(&made.stderr).trim());
    }
    Ok(())
}

/// A table of partitions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// As on a PC of the time before EFI.
    Mbr,
    /// EFI's.
    Gpt,
}

/// Bytes of a sector, and of the room before the first partition and of that: with what they are placed by Linux.
const SECTOR: usize = 512;
const ALIGNMENT: u64 = 1 << 20;

/// Makes an image of a disk with two partitions: one of zeros, and one with the volume of another image.
///
/// # Errors
///
/// One of the two cannot be read or written.
pub fn make_partitioned(disk: &Path, table: Table, volume: &Path) -> anyhow::Result<()> {
    let contents = std::fs::read(volume).with_context(|| format!("cannot read {}", volume.display()))?;
    let (first, second) = (ALIGNMENT / SECTOR as u64, 2 * ALIGNMENT / SECTOR as u64);
    let end = second + contents.len() as u64 / SECTOR as u64;
    let head = match table {
        Table::Mbr => record(&[(0x83, first, second), (0x83, second, end)]),
        Table::Gpt => gpt(&[(first, second), (second, end)], end),
    };
    let cannot = || format!("cannot write {}", disk.display());
    let file = File::create(disk).with_context(cannot)?;
    file.write_all_at(&head, 0).with_context(cannot)?;
    file.write_all_at(&contents, 2 * ALIGNMENT).with_context(cannot)?;
    file.set_len(end * SECTOR as u64 + ALIGNMENT).with_context(cannot)
}

/// Takes the volume out of an image that [`make_partitioned`] has made.
///
/// # Errors
///
/// One of the two cannot be read or written.
pub fn take_volume(disk: &Path, volume: &Path) -> anyhow::Result<()> {
    let contents = std::fs::read(disk).with_context(|| format!("cannot read {}", disk.display()))?;
    let part = &contents[2 * ALIGNMENT as usize..contents.len() - ALIGNMENT as usize];
    std::fs::write(volume, part).with_context(|| format!("cannot write {}", volume.display()))
}

/// Returns the first sector of a disk with partitions of these kinds, from a first sector up to another.
fn record(partitions: &[(u8, u64, u64)]) -> Vec<u8> {
    let mut sector = vec![0; SECTOR];
    for (number, (kind, start, end)) in partitions.iter().enumerate() {
        let entry = &mut sector[446 + 16 * number..][..16];
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&(*start as u32).to_le_bytes());
        entry[12..16].copy_from_slice(&((end - start) as u32).to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// Returns the first sectors of a disk with these partitions, which end before a sector.
fn gpt(partitions: &[(u64, u64)], end: u64) -> Vec<u8> {
    const ENTRIES: usize = 128;
    const ENTRY: usize = 128;
    let mut table = vec![0; ENTRIES * ENTRY];
    for (number, (start, end)) in partitions.iter().enumerate() {
        let entry = &mut table[number * ENTRY..][..ENTRY];
        // The kind of Linux's files, and a name of its own.
        let kind = 0x0fc6_3daf_8483_4772_8e79_3d69_d847_7de4_u128;
        entry[..16].copy_from_slice(&kind.to_be_bytes());
        entry[16] = number as u8 + 1;
        entry[32..40].copy_from_slice(&start.to_le_bytes());
        entry[40..48].copy_from_slice(&(end - 1).to_le_bytes());
    }
    let mut header = vec![0; SECTOR];
    header[..8].copy_from_slice(b"EFI PART");
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(8, &0x1_0000_u32.to_le_bytes());
    put(12, &92_u32.to_le_bytes());
    // Its own sector, the usable ones, the table, and its number and size of entries.
    put(24, &1_u64.to_le_bytes());
    put(40, &(2 + (ENTRIES * ENTRY / SECTOR) as u64).to_le_bytes());
    put(48, &(end - 1).to_le_bytes());
    put(72, &2_u64.to_le_bytes());
    put(80, &(ENTRIES as u32).to_le_bytes());
    put(84, &(ENTRY as u32).to_le_bytes());
    put(88, &crc32fast::hash(&table).to_le_bytes());
    let checksum = crc32fast::hash(&header[..92]);
    header[16..20].copy_from_slice(&checksum.to_le_bytes());
    let protective = record(&[(0xee, 1, u64::from(u32::MAX))]);
    [protective, header, table].concat()
}

/// Has `e2fsck` look at an image.
///
/// # Errors
///
/// It finds something, which the message has.
pub fn check(image: &Path) -> anyhow::Result<()> {
    let e2fsck = program("e2fsck").context("there is no e2fsck")?;
    let checked = children::command(e2fsck).args(["-f", "-n"]).arg(image).output().context("cannot run e2fsck")?;
    if !checked.status.success() {
        bail!("e2fsck: {}", String::from_utf8_lossy(&checked.stdout).trim());
    }
    Ok(())
}

/// Has `e2fsck` replay the journal of an image and end files without names, as it does at a boot of Linux.
///
/// # Errors
///
/// It finds something that only a person may mend, which the message has.
pub fn replay_by_linux(image: &Path) -> anyhow::Result<()> {
    let e2fsck = program("e2fsck").context("there is no e2fsck")?;
    let replayed = children::command(e2fsck).arg("-p").arg(image).output().context("cannot run e2fsck")?;
    // 1: it has changed something.
    if !matches!(replayed.status.code(), Some(0 | 1)) {
        bail!("e2fsck -p: {}", String::from_utf8_lossy(&replayed.stdout).trim());
    }
    Ok(())
}

/// A file of this host as the device of a volume.
#[derive(Clone)]
struct FileDevice(Rc<File>, u64);

impl Device for FileDevice {
    fn bytes(&self) -> u64 {
        self.1
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceFailed> {
        self.0.read_exact_at(bytes, offset).map_err(|_| DeviceFailed)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFailed> {
        self.0.write_all_at(bytes, offset).map_err(|_| DeviceFailed)
    }

    fn flush(&self) -> Result<(), DeviceFailed> {
        Ok(())
    }
}

/// Returns the bytes of the file with this number, as the program `tests --act write-volume` writes them.
fn contents(number: u32) -> Vec<u8> {
    let length = 100 + number * 37 % 30_000;
    (0..length).map(|index| (index.wrapping_mul(7).wrapping_add(index >> 8) ^ number) as u8).collect()
}

/// Replays the journal of an image, and looks for the files up to this number with their contents.
///
/// # Errors
///
/// The volume is not to be had, or a file is not there as it was written.
pub fn replay(image: &Path, last: u32) -> anyhow::Result<()> {
    let mut volume = mounted(image)?;
    for number in 0..=last {
        let name = format!("file-{number}");
        let found = volume.look_up(volume.root(), name.as_bytes());
        let found = found.map_err(|error| anyhow!("{name}: {error:?}"))?.with_context(|| format!("{name} is lost"))?;
        let expected = contents(number);
        let mut read = vec![0; expected.len() + 1];
        let count = volume.read(found.inode, 0, &mut read).map_err(|error| anyhow!("{name}: {error:?}"))?;
        if read[..count] != expected {
            bail!("{name} has other contents than were acknowledged");
        }
    }
    volume.unmount().map_err(|error| anyhow!("the volume is not unmounted: {error:?}"))
}

/// Copies the files at the top of an image's volume, whose journal is replayed, to the paths that `path` chooses by
/// their names. Blocks of zeros become holes.
///
/// # Errors
///
/// The volume is not to be had, a file cannot be read, or a copy not be written.
pub fn copy_files(image: &Path, path: impl Fn(&[u8]) -> Option<PathBuf>) -> anyhow::Result<()> {
    const NAMES: usize = 64;
    let mut volume = mounted(image)?;
    let mut place = 0;
    loop {
        let entries = volume.list(volume.root(), place, NAMES).map_err(|error| anyhow!("the directory: {error:?}"))?;
        let Some(last) = entries.last() else { break };
        place = last.next;
        for entry in entries {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let attributes = volume.attributes(entry.inode).map_err(|error| anyhow!("{name}: {error:?}"))?;
            if attributes.mode & 0o170_000 == 0o100_000
                && let Some(path) = path(&entry.name)
            {
                let read = |at: u64, piece: &mut [u8]| {
                    volume.read(entry.inode, at, piece).map_err(|error| anyhow!("{name}: {error:?}"))
                };
                copy_sparse(attributes.size, read, &path)?;
            }
        }
    }
    volume.unmount().map_err(|error| anyhow!("the volume is not unmounted: {error:?}"))
}

/// Writes a file of this size piece by piece, and leaves holes where there are zeros.
fn copy_sparse(
    size: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> anyhow::Result<usize>,
    path: &Path,
) -> anyhow::Result<()> {
    const BLOCK: usize = 4096;
    let cannot = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(cannot)?;
    let (mut at, mut piece) = (0, vec![0; 256 * BLOCK]);
    while at < size {
        let room = usize::try_from(size - at).unwrap_or(usize::MAX).min(piece.len());
        let count = read(at, &mut piece[..room])?;
        if count == 0 {
            break;
        }
        for (number, block) in piece[..count].chunks(BLOCK).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                file.write_all_at(block, at + (number * BLOCK) as u64).with_context(cannot)?;
            }
        }
        at += count as u64;
    }
    file.set_len(size).with_context(cannot)
}

fn mounted(image: &Path) -> anyhow::Result<Volume<FileDevice>> {
    let file = OpenOptions::new().read(true).write(true).open(image)?;
    let bytes = file.metadata()?.len();
    let now = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Stamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
    };
    let volume = Volume::mount(FileDevice(Rc::new(file), bytes), now, Access::Write);
    volume.map_err(|refusal| anyhow!("the volume is not mounted: {refusal}"))
}

/// Reads a size: bytes, or with a letter multiples of 1,024 (`2G`).
///
/// # Errors
///
/// It is none, or less than the smallest volume.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        unit => return Err(format!("`{unit}` is no unit: K, M and G are")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size, as 2G is one"))?;
    match number.checked_shl(shift).filter(|bytes| bytes >> shift == number) {
        Some(bytes) if bytes >= 8 << 20 => Ok(bytes),
        _ => Err("a volume has 8M or more".into()),
    }
}

/// Performs `image`.
///
/// # Errors
///
/// A program is missing, a package cannot be had, or the image cannot be written.
pub fn image(context: &Context, arguments: &cli::Image) -> anyhow::Result<()> {
    toolchain::ensure_on_host(&[Item::E2fsprogs], &context.progress)?;
    let (image, bytes) = match &arguments.action {
        ImageAction::Empty { image, size } => {
            make(image, *size, None)?;
            (image, *size)
        }
        ImageAction::Debian { image, packages, files, size } => {
            let root = Root::prepare(context, packages)?;
            (image, make_debian(context, image, &root, &own::archive(files)?, *size)?)
        }
    };
    println!("{} with {} MiB; start a machine with it by: cargo xtask run --disk {0}", image.display(), bytes >> 20);
    Ok(())
}

/// Makes an image of packages and the files of an archive, of so many bytes or with some room; returns its size.
///
/// # Errors
///
/// A file cannot be read, or the image not be written.
pub fn make_debian(
    context: &Context,
    image: &Path,
    root: &Root,
    more: &[u8],
    size: Option<u64>,
) -> anyhow::Result<u64> {
    let activity = context.progress.start("Making the image");
    let least = (bytes_below(root.directory())? + more.len() as u64) * 5 / 4;
    let bytes = size.unwrap_or((least + ROOM).next_multiple_of(1 << 20));
    make(image, bytes, Some(root.directory()))?;
    add_files(image, more)?;
    activity.clear();
    Ok(bytes)
}

/// Puts the files of an archive into an image's volume, in place of those of the same paths.
fn add_files(image: &Path, archive: &[u8]) -> anyhow::Result<()> {
    let mut volume = mounted(image)?;
    for entry in cpio::entries(archive) {
        let entry = entry?;
        let path = String::from_utf8_lossy(entry.path);
        add_file(&mut volume, &entry).with_context(|| format!("/{path} has no place in {}", image.display()))?;
    }
    volume.unmount().map_err(told)
}

fn told(error: ext4::Error) -> anyhow::Error {
    anyhow!("the volume says {error:?}")
}

/// Returns the directory of a path, to which links lead as in the machine; makes what is missing.
fn directory_of(volume: &mut Volume<FileDevice>, path: &[u8]) -> anyhow::Result<u32> {
    /// As many links as Linux follows in a path.
    const MOST_LINKS: usize = 40;
    let parts = |path: &[u8]| path.split(|byte| *byte == b'/').rev().map(Vec::from).collect::<Vec<_>>();
    let mut left = parts(path);
    let mut links = 0;
    let mut above = vec![volume.root()];
    while let Some(part) = left.pop() {
        let directory = *above.last().unwrap_or(&volume.root());
        match &part[..] {
            b"" | b"." => continue,
            b".." => {
                above.truncate(above.len().saturating_sub(1).max(1));
                continue;
            }
            _ => {}
        }
        let found = match volume.look_up(directory, &part).map_err(told)? {
            Some(found) => found,
            None => {
                let file = NewFile { owner: (0, 0), permissions: 0o755 };
                volume.make_directory(directory, &part, file).map_err(told)?
            }
        };
        if found.is(kind::SYMBOLIC_LINK) {
            links += 1;
            if links > MOST_LINKS {
                bail!("there are too many links on the way");
            }
            let target = volume.read_link(found.inode).map_err(told)?;
            if target.starts_with(b"/") {
                above.truncate(1);
            }
            left.extend(parts(&target));
        } else {
            above.push(found.inode);
        }
    }
    Ok(*above.last().unwrap_or(&volume.root()))
}

fn add_file(volume: &mut Volume<FileDevice>, entry: &cpio::Entry<'_>) -> anyhow::Result<()> {
    const PIECE: usize = 1 << 20;
    let (above, name) = match entry.path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&entry.path[..at], &entry.path[at + 1..]),
        None => (&b""[..], entry.path),
    };
    let owner = (0, 0);
    let directory = directory_of(volume, above)?;
    let file = NewFile { owner, permissions: entry.permissions };
    let there = volume.look_up(directory, name).map_err(told)?;
    if entry.kind == EntryKind::Directory && there.is_some_and(|there| !there.is(kind::REGULAR)) {
        return Ok(());
    }
    if there.is_some() {
        let gone = volume.unlink(directory, name).map_err(told)?;
        while gone.is_nameless && !volume.end_file(gone.inode).map_err(told)? {}
    }
    match entry.kind {
        EntryKind::Directory => drop(volume.make_directory(directory, name, file).map_err(told)?),
        EntryKind::SymbolicLink => {
            volume.make_symbolic_link(directory, name, entry.data, owner).map_err(told)?;
        }
        EntryKind::Regular => {
            let made = volume.create(directory, name, file).map_err(told)?;
            for (number, piece) in entry.data.chunks(PIECE).enumerate() {
                volume.write(made.inode, (number * PIECE) as u64, piece).map_err(told)?;
            }
        }
        _ => bail!("it is neither a file, a directory nor a symbolic link"),
    }
    Ok(())
}

fn bytes_below(folder: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        sum += if kind.is_dir() { bytes_below(&entry.path())? } else { entry.metadata()?.len().next_multiple_of(4096) };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("64m"), Ok(64 << 20));
        assert_eq!(parse_size("8388608"), Ok(8 << 20));
        for wrong in ["", "G", "2T", "1M", "-5", "99999999999G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
