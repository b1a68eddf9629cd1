//! The configuration of the kernel at boot: the boot words.
//!
//! Programs of seL4 have their kernel's configuration compiled in. One binary of this kernel serves programs of many
//! configurations: it gets their parameters as words, `name=value`, from two sources. Built-in words (`cargo xtask
//! build --kernel micro --words`) come first, because an image of seL4's build system has no command line; words of the
//! machine's command line follow, and the last word of a name counts. Every word is checked here against [`WORDS`],
//! which the book's chapter lists. The kernel does not start with a word that is not in the table, or whose value is
//! invalid.

use core::fmt;

use abi_sel4::configuration::{
    BOOT_UNTYPEDS, DOMAINS, MAXIMUM_BOOT_UNTYPEDS, MAXIMUM_DOMAINS, ROOT_CNODE_SIZE_BITS, TICK_MILLISECONDS,
    TICKS_IN_A_TURN,
};
use abi_sel4::debug_call::{Benchmarks, Build, Debugging, Release};
use heapless::Vec;

use crate::invocation::NUMBERING;
use crate::state::Period;

/// The built-in words.
pub const BUILT_IN: &str = match option_env!("COPS_MICRO_WORDS") {
    Some(words) => words,
    None => "",
};

/// The largest number of entries of the domain schedule in a word.
const PERIODS: usize = 32;

/// The permitted values of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// A number from the first to the second, inclusive.
    Number(u64, u64),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Entries of the domain schedule: a domain and a duration in ticks.
    Schedule,
    /// Any text: another reader interprets the word.
    Anything,
}

/// A boot word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootWord {
    /// Name of the word, before `=`.
    pub name: &'static str,
    /// Permitted values, behind `=`.
    pub values: Values,
    /// Value without such a word.
    pub default: Default,
    /// seL4's option of the same meaning.
    pub sel4: &'static str,
}

/// A default value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// This number.
    Number(u64),
    /// This text.
    Text(&'static str),
}

/// All words.
pub const WORDS: &[BootWord] = &[
    BootWord {
        name: "root-cnode-bits",
        values: Values::Number(8, 24),
        default: Default::Number(ROOT_CNODE_SIZE_BITS as u64),
        sel4: "KernelRootCNodeSizeBits",
    },
    BootWord {
        name: "untypeds",
        values: Values::Number(1, MAXIMUM_BOOT_UNTYPEDS as u64),
        default: Default::Number(BOOT_UNTYPEDS as u64),
        sel4: "KernelMaxNumBootinfoUntypedCaps",
    },
    BootWord {
        name: "domains",
        values: Values::Number(1, MAXIMUM_DOMAINS as u64),
        default: Default::Number(DOMAINS as u64),
        sel4: "KernelNumDomains",
    },
    BootWord {
        name: "schedule",
        values: Values::Schedule,
        default: Default::Text("0:ever"),
        sel4: "KernelDomainSchedule",
    },
    BootWord {
        name: "tick-ms",
        values: Values::Number(1, 60_000),
        default: Default::Number(TICK_MILLISECONDS as u64),
        sel4: "KernelTimerTickMS",
    },
    BootWord {
        name: "slice",
        values: Values::Number(1, u16::MAX as u64),
        default: Default::Number(TICKS_IN_A_TURN as u64),
        sel4: "KernelTimeSlice",
    },
    BootWord {
        name: "benchmarks",
        values: Values::OneOf(&["off", "calls", "entries", "utilisation"]),
        default: Default::Text("off"),
        sel4: "KernelBenchmarks",
    },
    BootWord {
        name: "error-text",
        values: Values::OneOf(&["off", "on"]),
        default: Default::Text("off"),
        sel4: "KernelInvocationReportErrorIPC",
    },
    BootWord { name: "release", values: Values::OneOf(&["15", "16"]), default: Default::Text("15"), sel4: "" },
    BootWord { name: "user-interrupts", values: Values::Anything, default: Default::Text(""), sel4: "" },
];

/// The reason why a word is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No word has this name.
    Unknown,
    /// The value is not one of these.
    Value(Values),
    /// The schedule contains a domain that does not exist.
    Domain {
        /// Number of domains.
        domains: u8,
    },
    /// The kernel was built without the feature `benchmarks`.
    NotBuilt,
}

/// A word that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused<'a> {
    /// The word.
    pub word: &'a str,
    /// The reason.
    pub problem: Problem,
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "the boot word `{}` is refused: ", self.word)?;
        match self.problem {
            Problem::Unknown => {
                formatter.write_str("there is no such word; there are")?;
                for word in WORDS {
                    write!(formatter, " {}", word.name)?;
                }
                Ok(())
            }
            Problem::Value(Values::Number(first, last)) => {
                write!(formatter, "its value is no number from {first} to {last}")
            }
            Problem::Value(Values::OneOf(names)) => {
                formatter.write_str("its value is none of")?;
                for name in names {
                    write!(formatter, " {name}")?;
                }
                Ok(())
            }
            Problem::Value(Values::Schedule | Values::Anything) => {
                write!(formatter, "its value is not 1 to {PERIODS} times DOMAIN:TICKS, with commas between")
            }
            Problem::Domain { domains } => write!(formatter, "the schedule names a domain, and there are {domains}"),
            Problem::NotBuilt => formatter.write_str("the kernel was built without the feature `benchmarks`"),
        }
    }
}

/// The form of invocation errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorText {
    /// Errors are numbers only.
    Off,
    /// A text is written to the IPC buffer of the invoking thread, too.
    On,
}

/// The settings of the boot words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Logarithm of the number of slots of the root CNode.
    pub root_cnode_bits: u8,
    /// The largest number of untyped capabilities of the root task.
    pub untypeds: usize,
    /// Number of scheduling domains.
    pub domains: u8,
    /// The initial domain schedule; empty if the first domain runs for ever.
    pub schedule: Vec<Period, PERIODS>,
    /// Length of a tick in milliseconds.
    pub tick_ms: u64,
    /// Length of a time slice in ticks.
    pub slice: u16,
    /// The form of invocation errors.
    pub error_text: ErrorText,
    /// The available calls for debugging and measuring, and their numbers.
    pub calls: Build,
}

impl core::default::Default for Configuration {
    fn default() -> Configuration {
        let debugging = if cfg!(feature = "debug-calls") { Debugging::On } else { Debugging::Off };
        Configuration {
            root_cnode_bits: ROOT_CNODE_SIZE_BITS as u8,
            untypeds: BOOT_UNTYPEDS,
            domains: DOMAINS as u8,
            schedule: Vec::new(),
            tick_ms: TICK_MILLISECONDS as u64,
            slice: TICKS_IN_A_TURN as u16,
            error_text: ErrorText::Off,
            calls: Build { release: Release::Fifteen, cores: NUMBERING, debugging, benchmarks: Benchmarks::Off },
        }
    }
}

impl Configuration {
    /// Reads the words of all lines; of two words with one name the later one counts.
    ///
    /// # Errors
    /// The first refused word.
    pub fn read<'a>(lines: &[&'a str]) -> Result<Configuration, Refused<'a>> {
        let mut configuration = Configuration::default();
        let mut schedule = "";
        for word in lines.iter().flat_map(|line| line.split_ascii_whitespace()) {
            let refused = |problem| Refused { word, problem };
            let (name, value) = word.split_once('=').ok_or(refused(Problem::Unknown))?;
            let known = WORDS.iter().find(|known| known.name == name).ok_or(refused(Problem::Unknown))?;
            configuration.set(known, value).map_err(refused)?;
            if known.values == Values::Schedule {
                schedule = word;
            }
        }
        let domains = configuration.domains;
        if configuration.schedule.iter().any(|period| period.domain >= domains) {
            return Err(Refused { word: schedule, problem: Problem::Domain { domains } });
        }
        Ok(configuration)
    }

    fn set(&mut self, word: &BootWord, value: &str) -> Result<(), Problem> {
        let refused = Problem::Value(word.values);
        let (number, place) = match word.values {
            Values::Number(first, last) => {
                (value.parse().ok().filter(|number| (first..=last).contains(number)).ok_or(refused)?, 0)
            }
            Values::OneOf(names) => (0, names.iter().position(|&name| name == value).ok_or(refused)?),
            Values::Schedule | Values::Anything => (0, 0),
        };
        match word.name {
            "root-cnode-bits" => self.root_cnode_bits = number as u8,
            "untypeds" => self.untypeds = number as usize,
            "domains" => self.domains = number as u8,
            "schedule" => self.schedule = periods(value).ok_or(refused)?,
            "tick-ms" => self.tick_ms = number,
            "slice" => self.slice = number as u16,
            "benchmarks" => {
                self.calls.benchmarks =
                    [Benchmarks::Off, Benchmarks::Calls, Benchmarks::Entries, Benchmarks::Utilisation][place];
                if self.calls.benchmarks > Benchmarks::Calls && !cfg!(feature = "benchmarks") {
                    return Err(Problem::NotBuilt);
                }
            }
            "error-text" => self.error_text = [ErrorText::Off, ErrorText::On][place],
            "release" => self.calls.release = [Release::Fifteen, Release::Sixteen][place],
            _ => {}
        }
        Ok(())
    }
}

/// Parses the entries of a domain schedule.
fn periods(text: &str) -> Option<Vec<Period, PERIODS>> {
    let mut periods = Vec::new();
    for entry in text.split(',') {
        let (domain, ticks) = entry.split_once(':')?;
        let ticks = match ticks {
            "ever" => Period::EVER,
            _ => ticks.parse().ok().filter(|ticks| (1..=u64::from(u32::MAX)).contains(ticks))?,
        };
        periods.push(Period { domain: domain.parse().ok()?, ticks }).ok()?;
    }
    Some(periods)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> String {
        Configuration::read(&[line]).map_or_else(|refused| refused.to_string(), |_| "none".into())
    }

    #[test]
    fn without_words_the_defaults_hold() {
        assert_eq!(Configuration::read(&["", " "]), Ok(Configuration::default()));
        let told: std::vec::Vec<String> = WORDS
            .iter()
            .map(|word| match word.default {
                Default::Number(number) => format!("{}={number}", word.name),
                Default::Text(text) => format!("{}={text}", word.name),
            })
            .collect();
        let told = told.join(" ");
        let schedule = Vec::from_slice(&[Period { domain: 0, ticks: Period::EVER }]).unwrap();
        assert_eq!(Configuration::read(&[&told]), Ok(Configuration { schedule, ..Configuration::default() }));
    }

    #[test]
    fn the_last_word_counts_and_those_of_the_machine_come_last() {
        let read = |lines: &[&'static str]| Configuration::read(lines).unwrap();
        assert_eq!(read(&["root-cnode-bits=17 domains=4", "root-cnode-bits=20"]).root_cnode_bits, 20);
        assert_eq!(read(&["domains=4", "domains=16 domains=2"]).domains, 2);
        // The order of words does not matter otherwise.
        assert_eq!(read(&["schedule=3:7,0:1 domains=4"]).schedule.len(), 2);
        let told = read(&["tick-ms=1000 slice=500 release=16 benchmarks=calls error-text=on untypeds=50"]);
        assert_eq!((told.tick_ms, told.slice, told.untypeds, told.error_text), (1000, 500, 50, ErrorText::On));
        assert_eq!((told.calls.release, told.calls.benchmarks), (Release::Sixteen, Benchmarks::Calls));
    }

    #[test]
    fn every_number_is_held_to_its_range() {
        for word in WORDS {
            let Values::Number(first, last) = word.values else { continue };
            for number in [first, last] {
                assert_eq!(refusal(&format!("{}={number}", word.name)), "none");
            }
            for value in [format!("{}", first - 1), format!("{}", last + 1), "".into(), "-1".into(), "x".into()] {
                assert_eq!(
                    refusal(&format!("{}={value}", word.name)),
                    format!(
                        "the boot word `{}={value}` is refused: its value is no number from {first} to {last}",
                        word.name
                    )
                );
            }
        }
    }

    #[test]
    fn words_that_mean_nothing_are_refused() {
        assert!(refusal("root-cnode-bit=13").contains("there is no such word; there are root-cnode-bits untypeds"));
        assert!(refusal("quiet").contains("no such word"));
        assert!(refusal("release=14").contains("its value is none of 15 16"));
        for schedule in ["", ":", "0", "0:", "0:0", "0:-1", "0:1,", "256:1", "0:1;1:2"] {
            let refused = refusal(&format!("domains=16 schedule={schedule}"));
            assert!(refused.contains("DOMAIN:TICKS"), "{schedule}: {refused}");
        }
        let long = std::vec!["0:1"; PERIODS + 1].join(",");
        assert!(refusal(&format!("schedule={long}")).contains("1 to 32 times"));
        assert_eq!(
            refusal("schedule=0:1,2:5 domains=2"),
            "the boot word `schedule=0:1,2:5` is refused: the schedule names a domain, and there are 2"
        );
        for value in ["entries", "utilisation"] {
            let counts = refusal(&format!("benchmarks={value}"));
            assert_eq!(counts == "none", cfg!(feature = "benchmarks"), "{counts}");
        }
    }

    #[test]
    fn the_book_lists_every_word() {
        let book = include_str!("../../../docs/book/microkernel.md");
        for word in WORDS {
            let values = match word.values {
                Values::Number(first, last) => format!("{first} to {last}"),
                Values::OneOf(names) => {
                    names.iter().map(|name| format!("`{name}`")).collect::<std::vec::Vec<_>>().join(", ")
                }
                Values::Schedule => "`DOMAIN:TICKS,…`".into(),
                Values::Anything => "anything".into(),
            };
            let default = match word.default {
                Default::Number(number) => format!("{number}"),
                Default::Text("") => "-".into(),
                Default::Text(text) => format!("`{text}`"),
            };
            let sel4 = if word.sel4.is_empty() { "-".into() } else { format!("`{}`", word.sel4) };
            let row = format!("| `{}` | {values} | {default} | {sel4} |", word.name);
            assert!(book.contains(&row), "the book has no row that begins with {row}");
        }
    }
}
