//! The one door for chores: `cargo xtask …` builds COPS, boots it, tests it and measures it.
//!
//! The command line ([`cli`]) becomes one call of a module that does the chore. Below the chores are the parts they
//! share: the workspace as cargo sees it, the toolchain and how to get it, the build, the machine in QEMU with its
//! serial line, and the children that never outlive this program.
//!
//! Errors are for users: one sentence with the cause and the next step. They travel as `anyhow::Error` because only
//! [`main`] looks at them, with two exceptions that have types of their own, a failed machine and a failed load.

#![forbid(unsafe_code)]

mod apt;
mod bench;
mod board;
mod book;
mod boot_loader;
mod browser;
mod build;
mod callers;
mod chart;
mod check;
mod children;
mod cli;
mod context;
mod cores;
mod cycles;
mod debian;
mod demo;
mod device_tree;
mod dist;
mod doctor;
mod efi;
mod emulator;
mod exchange;
mod exercises;
mod experiments;
mod fairness;
mod figures;
mod fuzz;
mod gdb;
mod guest;
mod hot;
mod image;
mod images;
mod instructions;
mod interrupt;
mod ipc;
mod lanes;
mod lasting;
mod links;
mod linux;
mod linux_target;
mod micro_async;
mod micro_latency;
mod microkernel;
mod miri;
mod monitor;
mod mutants;
mod own;
mod own_experiments;
mod page;
mod perfetto;
mod plots;
mod profile;
mod programs;
mod progress;
mod prose;
mod report;
mod results;
mod rocket;
mod root_task;
mod run;
mod screen;
mod sel4_layout;
mod serial;
mod size;
mod soak;
mod storms;
mod structure;
mod suites;
mod symbols;
mod systems;
mod terminal;
mod tidy;
mod toolchain;
mod vdso;
mod verdicts;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;

use build::{Counters, DebugCalls, Harts, Variation};
use cli::{Arguments, Command};
use context::{Context, Need};
use toolchain::Aim;
use workspace::Kernel;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Command::Guard(guard) = &arguments.command {
        let error = children::guard(guard.parent, &guard.command);
        eprintln!("{}: {error}", guard.command[0].display());
        return ExitCode::from(127);
    }
    if let Err(error) = interrupt::install() {
        eprintln!("error: signals cannot be handled: {error}");
        return ExitCode::FAILURE;
    }
    let result = run(&arguments);
    interrupt::stand_still_if_requested();
    match result {
        Ok(status) => status,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does the chore and returns this program's status: success, or that of a command in the machine.
fn run(arguments: &Arguments) -> Result<ExitCode> {
    if matches!(arguments.command, Command::Doctor) {
        return doctor::doctor().map(|()| ExitCode::SUCCESS);
    }
    allow_many_files();
    let mut context = Context::load(arguments.verbose, arguments.board.as_deref())?;
    if matches!(&arguments.command, Command::Run(run) if run.debug) {
        context.aim = Aim::Debugger;
    }
    arguments.check_board(&context.board)?;
    if let Some(machine) = arguments.command.machine() {
        // Before minutes of compiling.
        emulator::program(&context.board, machine, Path::new(""))?;
    }
    let _images = match &arguments.command {
        Command::Test(test)
            if suites::chosen_suites(test, &context.board).iter().any(|suite| suite.needs_machine()) =>
        {
            Some("test")
        }
        Command::Check(check) if check::boots(check) => Some("check"),
        Command::Bench(bench) if bench.name.is_some() && !bench.list => Some("bench"),
        Command::Soak(_) => Some("soak"),
        Command::Exchange(_) => Some("exchange"),
        Command::Demo(_) => Some("demo"),
        _ => None,
    }
    .map(|command| images::claim(&context.workspace.products(), command))
    .transpose()?;
    let done = match &arguments.command {
        Command::Run(arguments) => return run::run(&context, arguments),
        Command::Core(arguments) => return cores::core(&context, arguments),
        Command::Linux(arguments) => return programs::linux(&context, arguments),
        Command::New(arguments) => own::new(&context, arguments),
        Command::Build(arguments) => build(&context, arguments),
        Command::Image(arguments) => image::image(&context, arguments),
        Command::Dist => dist::dist(&context),
        Command::Machine(arguments) => emulator::build(&context, arguments.name),
        Command::Top(arguments) => monitor::top(&context, arguments),
        Command::Trace(arguments) => monitor::trace(&context, arguments),
        Command::Profile(arguments) => profile::profile(&context, arguments),
        Command::Demo(arguments) => demo::demo(&context, arguments),
        Command::Test(arguments) => suites::test(&context, arguments),
        Command::Soak(arguments) => soak::soak(&context, arguments),
        Command::Exchange(arguments) => exchange::exchange(&context, arguments),
        Command::Check(arguments) => check::check(&context, arguments),
        Command::Fuzz(arguments) => fuzz::fuzz(&context, arguments),
        Command::Mutants(arguments) => mutants::mutants(&context, arguments),
        Command::Tidy(tidy) if tidy.report => structure::report(&context.workspace),
        Command::Tidy(_) => tidy::tidy(&context.workspace),
        Command::Bench(arguments) => bench::bench(&context, arguments),
        Command::Book(arguments) => book::book(&context, arguments),
        Command::Report(arguments) => results::report(&context, arguments),
        Command::Size(arguments) => match arguments.kernel {
            cli::Measured::Micro => size::micro(&context),
        },
        Command::Symbolise(arguments) => {
            let elf = arguments.elf.clone().unwrap_or_else(|| context.workspace.products().join(build::KERNEL));
            let symbols = symbols::Symbols::load(&elf)?;
            let program = callers::SymbolisedProgram::load(&elf)?;
            let explain = |line: &str| program.explain(line);
            symbols::pipe(&symbols, explain, std::io::stdin().lock(), std::io::stdout().lock())
                .context("standard input cannot be copied")
        }
        Command::Doctor | Command::Guard(_) => Ok(()),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn build(context: &Context, arguments: &cli::Build) -> Result<()> {
    let micro_only = [
        (arguments.several_harts, "--several-harts"),
        (arguments.words.is_some(), "--words"),
        (arguments.counters, "--counters"),
        (arguments.no_debug_calls, "--no-debug-calls"),
        (arguments.sel4_layout, "--sel4-layout"),
    ];
    let products = match arguments.kernel {
        Kernel::Unix => {
            if let Some((_, option)) = micro_only.iter().find(|(given, _)| *given) {
                anyhow::bail!("{option} goes with --kernel micro");
            }
            context.build(Need::Boot)?.1
        }
        Kernel::Micro => {
            let harts = if arguments.several_harts { Harts::Several } else { Harts::One };
            // As long as this program, which builds once.
            let words = arguments.words.clone().unwrap_or_default().leak();
            let counters = if arguments.counters { Counters::Threads } else { Counters::None };
            let debug_calls = if arguments.no_debug_calls { DebugCalls::None } else { DebugCalls::All };
            let variation = Variation { words, counters, debug_calls, ..Variation::new(harts) };
            let (_, products) = context.build_microkernel(variation)?;
            if arguments.sel4_layout {
                println!("{}", sel4_layout::write(&products.kernel)?.display());
                return Ok(());
            }
            products
        }
    };
    println!("{}\n{}", products.kernel.display(), products.initramfs.display());
    Ok(())
}

/// Raises the limit of open files: each connection of the load is one, here and in QEMU, and many hosts allow 1,024 by
/// default.
fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
