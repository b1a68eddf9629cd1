//! Names in a trace: of programs, coroutines, spans and counters. They are collected before anything is written, since
//! the record of a name may be later than its first use: each worker of a process has a buffer of its own.
//!
//! Everything that a process says is a claim. Texts are bounded by `abi_unix::trace`, and they are no more than the
//! records.

use std::collections::HashMap;

use abi_unix::trace::{Kind, ProgramName, Record, TextPart};

/// A program that a process runs, or has run: its process, and the number of programs that this has had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramRun {
    pub process: u32,
    number: u32,
}

/// The present program of each process.
#[derive(Default)]
pub struct Runs(HashMap<u32, u32>);

impl Runs {
    /// Returns the program that a record belongs to. Records come in the order of time.
    pub fn of(&mut self, record: &Record) -> ProgramRun {
        let number = self.0.entry(record.process).or_default();
        *number += u32::from(record.kind == Kind::Program);
        ProgramRun { process: record.process, number: *number }
    }
}

/// A text of which parts were found.
#[derive(Default)]
struct Assembled {
    bytes: Vec<u8>,
    missing: usize,
}

impl Assembled {
    fn add(&mut self, part: TextPart) {
        let (offset, length) = (usize::from(part.offset), usize::from(part.length));
        // The number was used before, by another text.
        if offset == 0 || self.bytes.len() != length {
            *self = Assembled { bytes: vec![0; length], missing: length };
        }
        let bytes = &part.bytes[..part.bytes.len().min(length - offset)];
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.missing = self.missing.saturating_sub(bytes.len());
    }

    fn text(&self) -> Option<String> {
        (self.missing == 0).then(|| readable(&self.bytes))
    }
}

/// Makes bytes of a program a text without characters that could confuse a viewer.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|letter| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

/// Numbers of the texts of a coroutine; 0 for none.
#[derive(Clone, Copy, Default)]
struct OfCoroutine {
    name: u32,
    place: u32,
}

/// Names of everything in a trace.
#[derive(Default)]
pub struct Names {
    texts: HashMap<(ProgramRun, u32), Assembled>,
    coroutines: HashMap<(ProgramRun, u64), OfCoroutine>,
    programs: HashMap<u32, String>,
    /// The worker that each kernel coroutine runs which runs one.
    workers: HashMap<u64, (u32, u16)>,
}

impl Names {
    /// Collects the names in records, which are in the order of time.
    pub fn of(records: &[Record]) -> Names {
        let (mut names, mut runs, mut polled) = (Names::default(), Runs::default(), HashMap::new());
        for record in records {
            let run = runs.of(record);
            match record.kind {
                Kind::Program => {
                    let name = ProgramName::from_words([record.a, record.b]);
                    names.programs.insert(record.process, readable(name.as_bytes()));
                }
                Kind::Text => {
                    if let Some(part) = TextPart::from_arguments([record.a, record.b]) {
                        names.texts.entry((run, part.number)).or_default().add(part);
                    }
                }
                Kind::Spawned => names.coroutines.entry((run, record.a)).or_default().place = record.b as u32,
                Kind::Named => names.coroutines.entry((run, record.a)).or_default().name = record.b as u32,
                Kind::KernelPollBegins => drop(polled.insert(record.hart, record.a)),
                Kind::KernelPollEnds | Kind::Lost => drop(polled.remove(&record.hart)),
                Kind::UserBegins => {
                    if let Some(cid) = polled.get(&record.hart) {
                        names.workers.insert(*cid, (record.process, record.worker));
                    }
                }
                _ => {}
            }
        }
        names
    }

    /// Returns a text of a program; `None` if there is none, or a part of it is lost.
    pub fn text(&self, run: ProgramRun, number: u32) -> Option<String> {
        self.texts.get(&(run, number))?.text()
    }

    /// Returns a text that has to have a name.
    pub fn text_or_number(&self, run: ProgramRun, number: u32) -> String {
        self.text(run, number).unwrap_or_else(|| format!("text {number}, which is lost"))
    }

    /// Returns the name of a process's program.
    pub fn program(&self, process: u32) -> Option<&str> {
        self.programs.get(&process).map(String::as_str)
    }

    /// Returns the name of a coroutine, or the place of its spawn, or its number.
    pub fn coroutine(&self, run: ProgramRun, cid: u64) -> String {
        let own = self.coroutines.get(&(run, cid)).copied().unwrap_or_default();
        let known = self.text(run, own.name).or_else(|| self.text(run, own.place));
        known.unwrap_or_else(|| format!("coroutine {}", number(cid)))
    }

    /// Returns the place of the spawn of a coroutine.
    pub fn place(&self, run: ProgramRun, cid: u64) -> Option<String> {
        self.text(run, self.coroutines.get(&(run, cid))?.place)
    }

    /// Returns the name of a kernel coroutine: that of the worker that it runs, or its number.
    pub fn kernel_coroutine(&self, cid: u64) -> String {
        match self.workers.get(&cid) {
            Some((process, worker)) => format!("worker {worker} of {}", self.process(*process)),
            None => format!("kernel coroutine {}", number(cid)),
        }
    }

    /// Returns the name and the number of a process.
    pub fn process(&self, process: u32) -> String {
        format!("{} [{process}]", self.program(process).unwrap_or("process"))
    }
}

/// Formats a cid for people: index and generation.
pub fn number(cid: u64) -> String {
    format!("{}.{}", cid as u32, cid >> 32)
}
