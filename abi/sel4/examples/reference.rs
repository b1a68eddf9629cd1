//! Prints the reference page of the microkernel: `cargo run -p abi-sel4 --example reference > docs/sel4-calls.md`.
//!
//! The page contains only the tables of this crate. A test compares the page in the tree with this program's output.

use std::fmt::Write as _;

use abi_sel4::call::Group;
use abi_sel4::debug_call::{Benchmarks, Build, Debugging, Release};
use abi_sel4::{
    CapabilityTag, DebugCall, Error, Fault, Invocation, LookupFailureKind, Numbering, ObjectType, SystemCall,
    asynchronous, boot, registers,
};

#[allow(dead_code)] // The test has a main function of its own.
fn main() {
    print!("{}", page());
}

/// Returns the whole page as Markdown.
pub fn page() -> String {
    let mut page = String::from(
        "<!-- Made by `cargo run -p abi-sel4 --example reference > docs/sel4-calls.md`: change the tables in abi/sel4 instead. -->\n\n\
         # The microkernel's interface\n\n\
         System calls, invocations, errors, faults and objects of the microkernel, printed from the tables in `abi/sel4`. All but the entries \
         marked *not in seL4* are those of seL4 15.0.0 for riscv64 without MCS, whose reference manual explains them.\n\n\
         ## System calls\n\n\
         A call is the instruction `ecall` with the number in `a7`, a capability pointer in `a0`, a word that describes the message in \
         `a1` and its first words in `a2` to `a5`. A received message comes back in the same registers, with the sender's badge in `a0`.\n\n\
         | number | call | arguments | |\n|---|---|---|---|\n",
    );
    write_system_calls(&mut page);
    write_debug_calls(&mut page);
    write_invocations(&mut page);
    write_asynchronous_invocations(&mut page);
    write_errors(&mut page);
    write_faults(&mut page);
    write_objects(&mut page);
    write_thread(&mut page);
    page
}

fn write_system_calls(page: &mut String) {
    for &call in SystemCall::ALL {
        let group = match call.group() {
            Group::Interface => "",
            Group::Own => " (Not in seL4.)",
        };
        let description = without_links(call.description());
        let _ = writeln!(
            page,
            "| {} | `{}` | {} | {description}{group} |",
            call.number(),
            call.name(),
            list(call.arguments())
        );
    }
}

fn write_debug_calls(page: &mut String) {
    let build =
        |release, cores| Build { release, cores, debugging: Debugging::On, benchmarks: Benchmarks::Utilisation };
    let builds = [
        build(Release::Fifteen, Numbering::Uniprocessor),
        build(Release::Fifteen, Numbering::Multiprocessor),
        build(Release::Sixteen, Numbering::Uniprocessor),
        build(Release::Sixteen, Numbering::Multiprocessor),
    ];
    *page += "\n## Calls for debugging and measuring\n\n\
             A kernel has those that it was configured with, and gives their numbers from -9 downwards without a gap. The columns are \
             the numbers in a kernel that has all of them: of 15.0.0 for one core and for several, then of 16.0.0. Nothing else in this \
             interface differs between the two releases.\n\n\
             | 15, one | 15, several | 16, one | 16, several | call | arguments | in | |\n|---|---|---|---|---|---|---|---|\n";
    for &call in DebugCall::ALL {
        let numbers = builds.map(|build| call.number(build).map_or("-".into(), |number| number.to_string()));
        let _ = writeln!(
            page,
            "| {} | `{}` | {} | {} | {} |",
            numbers.join(" | "),
            call.name(),
            list(call.arguments()),
            call.presence().description(),
            without_links(call.description()),
        );
    }
}

fn write_invocations(page: &mut String) {
    *page += "\n## Invocations\n\n\
             The label of the message selects the operation on the invoked capability. The first number is the label in a kernel for one \
             core, the second in one for several. In the answer the label is 0, or an error. The errors listed are those that the arguments can cause; besides, every \
             invocation of an empty slot is `InvalidCapability`, and one that the object does not have is `IllegalOperation`. The \
             suite of the interface sees each of them, and no other.\n\n\
             | label | invocation | words | capabilities | results | errors | |\n|---|---|---|---|---|---|---|\n";
    for &invocation in Invocation::ALL {
        let several = invocation.label(Numbering::Multiprocessor).expect("all labels exist for several cores");
        let one = invocation.label(Numbering::Uniprocessor).map_or("-".into(), |label| label.to_string());
        let addition = if invocation.is_addition() { " (Not in seL4.)" } else { "" };
        let words: Vec<String> =
            invocation.words().iter().map(|(name, kind)| format!("`{name}`: {}", kind.name())).collect();
        let _ = writeln!(
            page,
            "| {one}, {several} | `{}` | {} | {} | {} | {} | {}{addition} |",
            invocation.name(),
            words.join(", "),
            list(invocation.capabilities()),
            list(invocation.results()),
            list(&invocation.errors().iter().map(|error| error.name()).collect::<Vec<_>>()),
            without_links(invocation.description()),
        );
    }
}

fn write_asynchronous_invocations(page: &mut String) {
    let covered: Vec<_> =
        Invocation::ALL.iter().copied().filter(|invocation| asynchronous::covers(*invocation)).collect();
    let names: Vec<_> = covered.iter().map(|invocation| invocation.name()).collect();
    let _ = write!(
        page,
        "\n## Asynchronous invocations\n\n\
         Through a SyscallBuffer a thread can make these, with the same labels, answers and errors: {}. Besides there are the labels \
         {:#x}, which writes a character to the console, and {:#x}, which writes up to {} bytes.\n",
        list(&names),
        asynchronous::PUT_CHAR,
        asynchronous::PUT_STRING,
        asynchronous::STRING_BYTES,
    );
}

fn write_errors(page: &mut String) {
    *page += "\n## Errors\n\n| number | error | |\n|---|---|---|\n";
    for error in Error::ALL {
        let _ = writeln!(page, "| {} | `{}` | {} |", error.number(), error.name(), without_links(error.description()));
    }
    *page += "\n## Failed searches for a capability\n\n| number | failure | words that follow | |\n|---|---|---|---|\n";
    for failure in LookupFailureKind::ALL {
        let _ = writeln!(
            page,
            "| {} | `{}` | {} | {} |",
            failure.number(),
            failure.name(),
            list(failure.details()),
            without_links(failure.description())
        );
    }
}

fn write_faults(page: &mut String) {
    *page += "\n## Faults\n\n| label | fault | words | written back by a reply | |\n|---|---|---|---|---|\n";
    for fault in Fault::ALL {
        let back = match fault.written_back() {
            0 => String::new(),
            words => format!("the first {words}"),
        };
        let _ = writeln!(
            page,
            "| {} | `{}` | {} | {back} | {} |",
            fault.label(),
            fault.name(),
            list(fault.words()),
            without_links(fault.description()),
        );
    }
}

fn write_objects(page: &mut String) {
    *page += "\n## Objects\n\nThe objects that retype makes. *n* is the size that the caller gives.\n\n\
             | number | object | bytes | of device memory | |\n|---|---|---|---|---|\n";
    for object in ObjectType::ALL {
        let size = match (object.size_bits(0), object.size_bits(1)) {
            (0, _) => "2^n".into(),
            (fixed, other) if fixed == other => format!("2^{fixed}"),
            (base, _) => format!("2^(n + {base})"),
        };
        let device = if object.may_be_device() { "yes" } else { "" };
        let _ = writeln!(
            page,
            "| {} | `{}` | {size} | {device} | {} |",
            object.number(),
            object.name(),
            without_links(object.description())
        );
    }
    *page += "\n## Kinds of capabilities\n\nThe numbers are those that `DebugCapIdentify` returns.\n\n| number | kind | |\n|---|---|---|\n";
    for tag in CapabilityTag::ALL {
        let _ = writeln!(page, "| {} | `{}` | {} |", tag.number(), tag.name(), without_links(tag.description()));
    }
}

fn write_thread(page: &mut String) {
    *page += "\n## Slots of the initial CNode\n\n| slot | seL4's name |\n|---|---|\n";
    for (slot, name) in boot::slot::NAMES.iter().enumerate() {
        let _ = writeln!(page, "| {slot} | `{name}` |");
    }
    let _ = write!(page, "\n## Registers of a thread\n\nIn this order: {}.\n", list(registers::NAMES));
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Links between items of the source become plain names.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[`") {
        let (name, after) = after.split_once("`]").expect("a link ends");
        let after =
            after.strip_prefix('(').map_or(after, |target| target.split_once(')').expect("a link's target ends").1);
        plain += &format!("{before}`{name}`");
        rest = after;
    }
    plain + rest
}
