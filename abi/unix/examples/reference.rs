//! Prints the reference page of system calls: `cargo run -p abi-unix --example reference > docs/calls.md`.
//!
//! The page contains only the tables of this crate, so that it cannot differ from the kernel, the library and the C
//! header. A test compares the page in the tree with this program's output.

use std::fmt::Write as _;

use abi_unix::authority::{Act, Scope};
use abi_unix::call::{ASYNCHRONOUS, Argument, Origin, PRIORITY_SHIFT, Waiting};
use abi_unix::{Counter, Errno, SystemCall, WILL_BE_POSTED};

/// The first number that is not Linux's.
const OWN: usize = 0x1000;

#[allow(dead_code)] // The test has a main function of its own.
fn main() {
    print!("{}", page());
}

/// Returns the whole page as Markdown.
pub fn page() -> String {
    let mut page = String::from(
        "<!-- Made by `cargo run -p abi-unix --example reference > docs/calls.md`: change the tables in abi/unix instead. -->\n\n\
         # System calls\n\n\
         The Unix kernel's calls, its errors and its counters, printed from the tables in `abi/unix`. \
         [The chapter on programs](book/writing-programs.md) shows how they look in Rust, \
         [the chapter on differences](book/differences-from-linux.md) where they are not Linux's.\n\n",
    );
    page += &calling();
    page += &overview();
    page += "\n## Calls with Linux's numbers\n\n\
             Each is described in section 2 of the Linux manual pages; this page describes this kernel's behaviour.\n\n";
    for &call in SystemCall::ALL.iter().filter(|&&call| (call as usize) < OWN) {
        page += &entry(call);
    }
    page += "## COPS's own calls\n\n";
    for &call in SystemCall::ALL.iter().filter(|&&call| call as usize >= OWN) {
        page += &entry(call);
    }
    page += &errors();
    page += &authority();
    page + &counters()
}

/// Lists all calls.
fn overview() -> String {
    let mut page = String::from(
        "## Overview\n\n| number | call | may have to wait | through a request ring |\n|---|---|---|---|\n",
    );
    for &call in SystemCall::ALL {
        let wait = match call.waiting() {
            Waiting::Never => "",
            Waiting::Possible => "yes",
        };
        let ring = match call.origin() {
            Origin::Anyone => "",
            Origin::Worker => "no",
        };
        let name = call.name();
        let _ = writeln!(page, "| {} | [`{name}`](#{name}) | {wait} | {ring} |", number(call));
    }
    page
}

/// Lists the errors.
fn errors() -> String {
    let mut page = String::from(
        "## Errors\n\n\
             A call that fails returns the negative of one of these numbers. A number that is not in the call table gives \
             `ENOSYS`, an address that the process may not use that way `EFAULT`.\n\n\
             | error | number | meaning |\n|---|---|---|\n",
    );
    for error in Errno::ALL {
        let _ = writeln!(page, "| `{}` | {} | {} |", error.name(), error.number(), error.message());
    }
    page
}

/// Lists the acts that need a capability.
fn authority() -> String {
    let mut page = String::from(
        "\n## Authority\n\n\
             Acts that affect other processes, and the capability without which they fail with `EPERM`. \
             [The chapter on authority](book/authority.md) describes the capabilities of each process.\n\n\
             | call | act | capability | needed |\n|---|---|---|---|\n",
    );
    for act in Act::ALL {
        let (name, capability) = (act.call().name(), act.capability());
        let needed = match act.scope() {
            Scope::Always => "always",
            Scope::Others => "unless it concerns only the caller and processes below it",
            Scope::OtherUsers => "unless it concerns only the caller's user and processes below the caller",
        };
        let _ = writeln!(
            page,
            "| [`{name}`](#{name}) | {} | `{}` ({}) | {needed} |",
            act.description(),
            capability.name(),
            capability as u8
        );
    }
    page
}

/// Lists the counters.
fn counters() -> String {
    let mut page = String::from(
        "\n## Counters\n\n\
             The array that [`counters`](#counters) copies, in this order, one 64-bit word each.\n\n\
             | counter | meaning |\n|---|---|\n",
    );
    for counter in Counter::ALL {
        let _ = writeln!(page, "| `{}` | {} |", counter.name(), without_links(counter.description()));
    }
    page
}

/// Describes the registers of a call.
fn calling() -> String {
    format!(
        "## Making a call\n\n\
         A call is the instruction `ecall` with these registers. All registers but `a0` are preserved.\n\n\
         | register | synchronous | asynchronous |\n|---|---|---|\n\
         | `a7` | number | number + {ASYNCHRONOUS:#x} + priority of the waiting coroutine × {:#x} |\n\
         | `a0` … `a5` | arguments | arguments |\n\
         | `a6` | unused | cid of the waiting coroutine |\n\
         | `t0` | unused | token, given back with the completion |\n\
         | `a0` on return | result, or the negative of an error number | the same if the call could be done at once, else {} |\n\n\
         The last number says that the result *will be posted* to the completion ring. A call that never has to wait does the \
         same in both forms. Other bits in `a7` make the call one that does not exist (`ENOSYS`).\n\n",
        1usize << PRIORITY_SHIFT,
        WILL_BE_POSTED as isize,
    )
}

fn number(call: SystemCall) -> String {
    match call as usize {
        own if own >= OWN => format!("{own:#x}"),
        linux => linux.to_string(),
    }
}

fn entry(call: SystemCall) -> String {
    let name = call.name();
    let mut text = format!("### {name}\n\n{}\n\n", without_links(call.description()));
    if !call.arguments().is_empty() {
        text += "| register | argument | |\n|---|---|---|\n";
    }
    for (position, &(argument, kind)) in call.arguments().iter().enumerate() {
        let kind = match kind {
            Argument::Number => "number or flags",
            Argument::Descriptor => "descriptor",
            Argument::Input => "address of data that the kernel reads",
            Argument::Output => "address of data that the kernel writes",
            Argument::Path => "address of a path that ends with NUL",
            Argument::Length => "bytes",
        };
        let _ = writeln!(text, "| `a{position}` | `{argument}` | {kind} |");
    }
    if !call.arguments().is_empty() {
        text.push('\n');
    }
    for act in Act::ALL.iter().filter(|act| act.call() == call) {
        let when = match act.scope() {
            Scope::Always => "",
            Scope::Others => " for a process that is neither the caller nor below it",
            Scope::OtherUsers => " for a process of another user that is not below the caller",
        };
        let _ = writeln!(text, "Needs `{}`{when}: {}\n", act.capability().name(), act.description());
    }
    text += &match call.waiting() {
        Waiting::Never => format!("Number {}. Never has to wait.\n\n", number(call)),
        Waiting::Possible => {
            format!("Number {}. May have to wait; in its asynchronous form only the coroutine waits.\n\n", number(call))
        }
    };
    text
}

/// Links between items of the source become plain names.
fn without_links(text: &str) -> String {
    text.replace("[`crate::", "`").replace("[`", "`").replace("`]", "`")
}
