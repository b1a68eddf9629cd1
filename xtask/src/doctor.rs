//! `doctor`: the tools of the host, the missing ones, and advice.

use anyhow::{Result, bail};

use crate::browser;
use crate::toolchain::{
    Decision, Installation, Item, Seen, decide, forced_installation, install_command, look, missing,
};
use crate::workspace::TARGET;

/// Looks at the host and prints a diagnosis.
///
/// # Errors
///
/// A tool is missing that `demo` needs and this program cannot install by itself.
pub fn doctor() -> Result<()> {
    let seen = look();
    let (text, verdict) = diagnosis(&seen, forced_installation()?);
    print!("{text}");
    match verdict {
        Verdict::Ready | Verdict::WillInstall => Ok(()),
        Verdict::NeedsYou => bail!("this host is not ready; run the commands named above"),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Ready,
    WillInstall,
    NeedsYou,
}

/// Commands that install QEMU with RISC-V's firmware on other systems.
const ELSEWHERE: [(&str, &str); 4] = [
    ("Fedora", "sudo dnf install qemu-system-riscv"),
    ("Arch", "sudo pacman -S qemu-system-riscv"),
    ("macOS", "brew install qemu"),
    ("Nix", "nix-shell -p qemu"),
];

fn diagnosis(seen: &Seen, forced: Option<Installation>) -> (String, Verdict) {
    let mut lines = tools(seen);
    let mut verdict = Verdict::Ready;
    lines.push(String::new());
    match decide(seen, forced) {
        Decision::Use(Installation::Rustup) => lines.push("COPS is compiled with the Rust on the PATH.".into()),
        Decision::Use(Installation::Debian) => lines.push("COPS is compiled with Debian's packages.".into()),
        Decision::AddTarget => {
            verdict = Verdict::WillInstall;
            lines.push(format!("`cargo xtask build` will run: rustup target add {TARGET}"));
        }
        Decision::Install(items) => {
            verdict = Verdict::WillInstall;
            lines.push(format!("`cargo xtask build` will install: {}", packages(&items)));
        }
        Decision::Impossible(commands) => {
            verdict = Verdict::NeedsYou;
            lines.push(format!("To compile COPS, run: {}", commands.join("  or  ")));
        }
    }
    let needed = missing(seen, &[Item::Qemu, Item::OpenSbi]);
    if !needed.is_empty() {
        if seen.debian && seen.may_install {
            lines.push(format!("`cargo xtask build` will install: {}", packages(&needed)));
            verdict = if verdict == Verdict::Ready { Verdict::WillInstall } else { verdict };
        } else {
            lines.push(format!(
                "To boot COPS, install QEMU 7.2 or later with OpenSBI; on Debian: {}",
                install_command(&needed)
            ));
            lines.extend(ELSEWHERE.map(|(system, command)| format!("    on {system}: {command}")));
            verdict = Verdict::NeedsYou;
        }
    }
    lines.push(match browser::find() {
        Some(_) => "The pages of results are looked at by the tests, in Chromium.".into(),
        None => {
            "Without Chromium the tests do not look at the pages of results; on Debian: apt-get install chromium".into()
        }
    });
    if !seen.present.contains(&Item::Clang) {
        lines.push(format!(
            "Without clang the C example is left out, and `check` fails; on Debian: {}",
            install_command(&[Item::Clang])
        ));
    }
    if verdict == Verdict::Ready {
        lines.push("This host is ready: cargo xtask demo".into());
    }
    (lines.join("\n") + "\n", verdict)
}

/// Returns a line for each tool: found, or missing.
fn tools(seen: &Seen) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say =
        |good: bool, text: String| lines.push(format!("{} {text}", if good { "  ok     " } else { "  MISSING" }));
    match &seen.rust {
        Some(rust) => {
            say(true, format!("Rust on the PATH: {}", rust.version));
            let has = if rust.has_target { "has" } else { "lacks" };
            say(rust.has_target, format!("its target {TARGET}: the toolchain {has} it"));
        }
        None => say(false, "Rust 1.95 or later on the PATH".into()),
    }
    let there = |item: Item| seen.present.contains(&item);
    for item in [Item::DebianRustc, Item::DebianCargo, Item::DebianRustSource, Item::Lld] {
        if there(item) {
            say(true, format!("{} (package {})", item.description(), item.package()));
        }
    }
    for item in [
        Item::Qemu,
        Item::OpenSbi,
        Item::Clang,
        Item::Valgrind,
        Item::RiscvGcc,
        Item::RiscvLibc,
        Item::E2fsprogs,
        Item::UBoot,
    ] {
        say(there(item), format!("{} (package {})", item.description(), item.package()));
    }
    lines
}

fn packages(items: &[Item]) -> String {
    items.iter().map(|item| item.package()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolchain::RustOnPath;

    #[test]
    fn a_host_with_everything_is_ready() {
        let rust = RustOnPath { version: "rustc 1.95.0".into(), has_target: true, rustup: true };
        let seen =
            Seen { rust: Some(rust), present: [Item::Qemu, Item::OpenSbi, Item::Clang].into(), ..Seen::default() };
        let (text, verdict) = diagnosis(&seen, None);
        assert_eq!(verdict, Verdict::Ready);
        assert!(text.contains("This host is ready") && text.contains("MISSING valgrind"), "{text}");
        assert!(text.contains("Chromium"), "{text}");
    }

    #[test]
    fn missing_tools_are_named_with_the_command_that_installs_them() {
        let (text, verdict) = diagnosis(&Seen { debian: true, ..Seen::default() }, None);
        assert_eq!(verdict, Verdict::NeedsYou);
        assert!(text.contains("rustup target add") && text.contains("apt-get install rustc-web"), "{text}");
        assert!(text.contains("sudo apt-get install qemu-system-misc opensbi"), "{text}");
        let (text, verdict) = diagnosis(&Seen { debian: true, may_install: true, ..Seen::default() }, None);
        assert_eq!(verdict, Verdict::WillInstall);
        assert!(text.contains("will install: qemu-system-misc opensbi"), "{text}");
    }
}
