//! The machine as a whole: its harts, pending interrupts, options of the boot command line, and its end.

pub(crate) mod virtio;

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use hal_api::{Machine as _, Status};
use platform::{Machine, Pending, println};
use spin::Once;

use crate::process::exit_status::Ending;
use crate::time;

static HARTS: AtomicUsize = AtomicUsize::new(1);

/// Returns the number of harts that run the system.
pub fn harts() -> usize {
    HARTS.load(Ordering::Relaxed)
}

/// Sets the number of harts that run the system.
pub(crate) fn set_harts(harts: usize) {
    HARTS.store(harts, Ordering::Relaxed);
}

/// The handler of interrupts that are meant for programs.
static HANDLER: Once<fn(Pending)> = Once::new();

/// Registers the handler of interrupts that are meant for programs, which is called at every look. Called once.
pub(crate) fn handle_with(handler: fn(Pending)) {
    HANDLER.call_once(|| handler);
}

/// Handles everything that is pending on this hart, and returns it.
#[doc(alias = "handle_irq")]
#[doc(alias = "softirq")]
pub(crate) fn on_interrupt() -> Pending {
    let pending = platform::poll_interrupts();
    if pending.timer {
        time::on_timer();
    }
    if let Some(handler) = HANDLER.get() {
        handler(pending);
    }
    pending
}

/// Splits `NAME=VALUE … -- ARGUMENT …` into the words before and behind the dashes.
pub(crate) fn split_line(line: &str) -> (&str, &str) {
    line.split_once(" -- ").unwrap_or((line, ""))
}

/// Divides text into words. One in double quotes may be empty and may contain blanks; in it `\` stands before a quote
/// or another backslash.
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\\' if is_quoted => word.get_or_insert_default().extend(characters.next()),
            character if character.is_whitespace() && !is_quoted => words.extend(word.take()),
            character => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

/// Returns the value of a word `NAME=VALUE` on the boot command line, the first if there are several.
#[doc(alias = "__setup")]
#[doc(alias = "early_param")]
pub(crate) fn boot_option<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    split_line(line).0.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Returns the last of these words that stands alone on the boot command line.
pub(crate) fn boot_word<'a>(line: &'a str, words: &[&str]) -> Option<&'a str> {
    split_line(line).0.split_whitespace().rfind(|word| words.contains(word))
}

/// Ends the machine after the first process.
pub(crate) fn first_process_has_ended(ending: Ending) -> ! {
    match ending {
        Ending::Exited(0) => println!("the first process has ended"),
        Ending::Exited(code) => println!("the first process has ended with status {code}"),
        Ending::Killed(signal) | Ending::Dumped(signal) => println!("the first process was ended by signal {signal}"),
    }
    power_off(ending)
}

/// Ends the machine with a status that tells how the first process ended.
pub(crate) fn power_off(ending: Ending) -> ! {
    shut_down(match ending {
        Ending::Exited(0) => Status::Success,
        Ending::Exited(code) => Status::Failure(code),
        Ending::Killed(signal) | Ending::Dumped(signal) => Status::Failure(128 + (signal & 0x7f)),
    })
}

/// Ends the machine after all output has left it.
#[doc(alias = "kernel_restart")]
#[doc(alias = "machine_halt")]
pub fn shut_down(status: Status) -> ! {
    platform::shut_down(status)
}

/// Restarts the machine after all output has left it.
pub(crate) fn restart() -> ! {
    platform::console_flush();
    Machine::restart()
}

#[cfg(test)]
mod tests {
    use hal_host::Simulation;

    use super::*;

    #[test]
    fn arguments_may_contain_blanks() {
        assert_eq!(words(r" a  -b\ c"), ["a", r"-b\", "c"]);
        assert_eq!(words(r#"-c "exit 3" "" "a\"b\\" x"y z""#), ["-c", "exit 3", "", r#"a"b\"#, "xy z"]);
        assert_eq!(words("\"a b"), ["a b"]);
        assert!(words("").is_empty());
    }

    /// The status of the first process is the machine's, and a signal's is what a shell would make of it.
    #[test]
    fn the_machine_ends_as_its_first_process_has() {
        let _guard = crate::testing::alone();
        let status = |ending| Simulation::new().run(|| power_off(ending));
        assert_eq!(status(Ending::Exited(0)), Status::Success);
        assert_eq!(status(Ending::Exited(3)), Status::Failure(3));
        assert_eq!(status(Ending::Killed(9)), Status::Failure(137));
        assert_eq!(status(Ending::Killed(0x8b)), Status::Failure(139), "without the bit of a core");
        assert_eq!(Simulation::new().run(|| first_process_has_ended(Ending::Exited(4))), Status::Failure(4));
    }
}
