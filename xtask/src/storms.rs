//! The state in which a power cut may leave the volume that `tests --act storm-volume` changes.
//!
//! The program announces each change before it begins, and acknowledges it when it lasts. So after a cut every file is
//! as the acknowledged changes have left it, but for the files of the change that was under way: those have the bytes
//! before it or after it, each for itself where the change is no rename. A word of a file is the number of the change
//! that has written it and its place; so a word of another file, or of a place that was free before, is found out.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};

/// Files by their names.
pub type Files = BTreeMap<String, Vec<u8>>;

/// A change that was announced.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    number: u64,
    kind: String,
    one: String,
    other: String,
    from: usize,
    length: usize,
}

/// The files that a volume is to have, and the change under way.
#[derive(Clone, Default)]
pub struct Storm {
    /// The files as the acknowledged changes have left them.
    files: Files,
    /// The change under way.
    begun: Option<Change>,
    /// The kinds of all changes.
    kinds: BTreeMap<u64, String>,
    /// Number of acknowledged changes.
    lasting: u64,
}

fn word(change: u64, place: usize) -> [u8; 8] {
    (change << 32 | place as u64).to_le_bytes()
}

fn words(change: u64, from: usize, length: usize) -> Vec<u8> {
    (from / 8..(from + length) / 8).flat_map(|place| word(change, place)).collect()
}

impl Change {
    fn parse(text: &str) -> Option<Change> {
        let mut parts = text.split(' ');
        let number = parts.next()?.parse().ok()?;
        let kind = parts.next()?.to_string();
        let mut name = || Some(format!("s{}", parts.next()?.parse::<u32>().ok()?));
        let (one, other) = (name()?, name()?);
        let mut size = || parts.next()?.parse().ok();
        let change = Change { number, kind, one, other, from: size()?, length: size()? };
        // Without its end the line was cut off, perhaps within a number.
        (parts.next() == Some(".")).then_some(change)
    }

    /// Makes it in whole.
    fn apply(&self, files: &mut Files) {
        let end = self.from + self.length;
        match self.kind.as_str() {
            "write" | "store" => {
                let file = files.entry(self.one.clone()).or_default();
                let size = if self.kind == "store" { end } else { file.len().max(end) };
                file.resize(size, 0);
                file[self.from..end].copy_from_slice(&words(self.number, self.from, self.length));
            }
            "truncate" => files.entry(self.one.clone()).or_default().resize(self.from, 0),
            "unlink" => drop(files.remove(&self.one)),
            "rename" => {
                if let Some(file) = files.remove(&self.one) {
                    files.insert(self.other.clone(), file);
                }
            }
            "replace" => drop(files.insert(self.one.clone(), words(self.number, 0, self.length))),
            // Nothing that lasts.
            _ => {}
        }
    }

    /// Returns whether these may be the bytes of its file when it was made in part.
    fn allows(&self, before: Option<&Vec<u8>>, found: Option<&Vec<u8>>) -> bool {
        let end = self.from + self.length;
        let size = before.map_or(0, Vec::len);
        let (least, most) = match self.kind.as_str() {
            "write" => (size, size.max(end)),
            "store" => (size.min(end), size.max(end)),
            "truncate" => (size.min(self.from), size.max(self.from)),
            _ => return before == found,
        };
        let Some(found) = found else { return before.is_none() };
        let bytes = before.map_or(&[][..], Vec::as_slice);
        (least..=most).contains(&found.len())
            && found.chunks(8).enumerate().all(|(place, chunk)| {
                let mut old = [0; 8];
                let present = bytes.get(place * 8..).unwrap_or(&[]);
                old[..present.len().min(8)].copy_from_slice(&present[..present.len().min(8)]);
                let is_new = self.kind != "truncate" && (self.from..end).contains(&(place * 8));
                // A store that is under way when the page is written may be there in part.
                let new = word(self.number, place);
                chunk == &old[..chunk.len()]
                    || chunk.iter().all(|byte| *byte == 0) && place * 8 + 8 > least
                    || is_new
                        && chunk.iter().zip(old.iter().zip(&new)).all(|(byte, (old, new))| byte == old || byte == new)
            })
    }
}

impl Storm {
    /// Takes a line of the program.
    ///
    /// # Errors
    ///
    /// It tells of a failure.
    pub fn take(&mut self, line: &str) -> Result<()> {
        if let Some(text) = line.strip_prefix("begin ") {
            // The last line before the cut may be a part of one, of a change that had not begun.
            self.begun = Change::parse(text);
            if let Some(change) = &self.begun {
                self.kinds.insert(change.number, change.kind.clone());
            }
        } else if let Some(number) = line.strip_prefix("lasting ") {
            if let Some(change) = self.begun.take_if(|change| change.number.to_string() == number) {
                change.apply(&mut self.files);
                self.lasting += 1;
            }
        } else if line.starts_with("change ") || line.starts_with("the volume is not mounted") {
            bail!("{line}");
        }
        Ok(())
    }

    /// Returns the number of acknowledged changes up to now.
    pub fn lasting(&self) -> u64 {
        self.lasting
    }

    /// Compares the files of a volume after a cut with what they may be, and goes on with these.
    ///
    /// # Errors
    ///
    /// A file is not as it was acknowledged, or has bytes of another.
    pub fn compare(&mut self, found: Files) -> Result<()> {
        let begun = self.begun.take();
        let is_file = |name: &&String| name.starts_with('s');
        let mut after = self.files.clone();
        if let Some(change) = &begun {
            change.apply(&mut after);
        }
        let all: BTreeSet<&String> =
            self.files.keys().chain(after.keys()).chain(found.keys()).filter(is_file).collect();
        let same = |expected: &Files| all.iter().all(|name| expected.get(*name) == found.get(*name));
        if !same(&self.files) && !same(&after) {
            for name in all {
                let (before, found) = (self.files.get(name), found.get(name));
                let is_right = match begun.as_ref().filter(|change| change.one == *name) {
                    Some(change) => change.allows(before, found),
                    None => before == found,
                };
                if !is_right {
                    bail!("{name} {} while {begun:?} was under way", difference(before, found));
                }
            }
        }
        for (name, bytes) in found.iter().filter(|(name, _)| !is_file(name)) {
            self.compare_words(name, bytes).with_context(|| format!("{name} has bytes of another file"))?;
        }
        self.files = found.into_iter().filter(|(name, _)| is_file(&name)).collect();
        Ok(())
    }

    /// Looks whether all words of a file that nobody has synchronised are its own.
    fn compare_words(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let kind = if name == "new" { "replace" } else { "noise" };
        for (place, chunk) in bytes.chunks_exact(8).enumerate().filter(|(_, chunk)| **chunk != [0; 8]) {
            let value = u64::from_le_bytes(chunk.try_into()?);
            let (number, own) = (value >> 32, value as u32 as usize);
            if own != place || self.kinds.get(&number).is_none_or(|of| of != kind) {
                bail!("at word {place}: {value:#x}");
            }
        }
        Ok(())
    }
}

/// Says how a file differs from what it should be.
fn difference(expected: Option<&Vec<u8>>, found: Option<&Vec<u8>>) -> String {
    match (expected, found) {
        (None, Some(found)) => format!("has {} bytes and should not be there", found.len()),
        (Some(_), None) => "is not there".into(),
        (Some(expected), Some(found)) => {
            let place = expected.iter().zip(found).position(|(one, other)| one != other);
            let (place, lengths) = (place.unwrap_or(expected.len().min(found.len())), (found.len(), expected.len()));
            format!("has {} bytes, expected {}, and differs from byte {place} on", lengths.0, lengths.1)
        }
        (None, None) => "is as expected".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storm(lines: &[&str]) -> Storm {
        let mut storm = Storm::default();
        lines.iter().for_each(|line| storm.take(line).unwrap());
        storm
    }

    fn files(files: &[(&str, Vec<u8>)]) -> Files {
        files.iter().map(|(name, bytes)| (name.to_string(), bytes.clone())).collect()
    }

    #[test]
    fn acknowledged_changes_are_there_and_nothing_else() {
        let lines = ["begin 7 write 1 2 8 16 .", "lasting 7"];
        let whole = [vec![0; 8], words(7, 8, 16)].concat();
        storm(&lines).compare(files(&[("s1", whole.clone())])).unwrap();
        let mut other = whole.clone();
        other[9] ^= 1;
        for wrong in [vec![], vec![("s1", other)], vec![("s1", whole[..16].to_vec())], vec![("s2", whole.clone())]] {
            assert!(storm(&lines).compare(files(&wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_change_under_way_may_be_there_in_part() {
        let lines = ["begin 7 replace 1 1 0 32 .", "lasting 7", "begin 8 write 1 2 16 32 ."];
        let before = words(7, 0, 32);
        let half = [&before[..24], &words(8, 24, 24)[..]].concat();
        let elsewhere = [&before[..24], &words(8, 16, 24)[..]].concat();
        storm(&lines).compare(files(&[("s1", before.clone())])).unwrap();
        storm(&lines).compare(files(&[("s1", half)])).unwrap();
        assert!(storm(&lines).compare(files(&[("s1", elsewhere)])).is_err());
        assert!(storm(&lines).compare(files(&[("s1", before[..24].to_vec())])).is_err(), "shorter");
    }

    #[test]
    fn a_line_that_was_cut_off_is_no_change() {
        let whole = "8 write 1 2 8 16 .";
        assert!(Change::parse(whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(Change::parse(&whole[..length]), None, "{length}");
        }
        // Bytes of no number of words would be in no file.
        let lines = ["begin 7 replace 1 1 0 32 .", "lasting 7", "begin 8 write 1 2 8 1"];
        storm(&lines).compare(files(&[("s1", words(7, 0, 32))])).unwrap();
    }

    #[test]
    fn a_rename_is_there_or_not() {
        let lines = ["begin 7 replace 1 1 0 32 .", "lasting 7", "begin 8 rename 1 2 16 32 ."];
        let file = words(7, 0, 32);
        storm(&lines).compare(files(&[("s1", file.clone())])).unwrap();
        storm(&lines).compare(files(&[("s2", file.clone())])).unwrap();
        assert!(storm(&lines).compare(files(&[("s1", file.clone()), ("s2", file)])).is_err());
        assert!(storm(&lines).compare(Files::new()).is_err());
    }

    #[test]
    fn files_that_need_not_last_have_no_bytes_of_others() {
        let lines = ["begin 7 noise 1 1 0 32 .", "lasting 7", "begin 8 write 3 3 0 8 .", "lasting 8"];
        let with = |noise: Vec<u8>| storm(&lines).compare(files(&[("noise1", noise), ("s3", words(8, 0, 8))]));
        with([words(7, 0, 16), vec![0; 16]].concat()).unwrap();
        assert!(with(words(8, 0, 8)).is_err());
        assert!(with([vec![0; 8], words(7, 0, 8)].concat()).is_err(), "another place");
        assert!(Storm::default().take("change 9 has failed: EIO").is_err());
    }
}
