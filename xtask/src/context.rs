//! The context of every command: the workspace, the board, the way to show progress.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::board::{Board, Clock, Configuration, Network};
use crate::build::{self, Broken, Harts, Products, Variation};
use crate::cli::{Machine, UserInterrupts};
use crate::progress::Progress;
use crate::toolchain::{Aim, CExample, Toolchain};
use crate::workspace::Workspace;

/// The context of every command.
pub struct Context {
    /// The workspace.
    pub workspace: Workspace,
    /// The board.
    pub board: Board,
    /// The way to show progress.
    pub progress: Progress,
    /// The aim of compiling kernel and programs.
    pub aim: Aim,
}

/// The purpose of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A machine that boots. Optional parts may be left out, with a message.
    Boot,
    /// A machine that boots one program. Others that do not compile are left out too.
    OneProgram,
    /// Every part.
    Everything,
}

impl Context {
    /// Reads workspace and board.
    ///
    /// # Errors
    ///
    /// One of them is invalid.
    pub fn load(verbose: bool, board: Option<&str>) -> Result<Context> {
        let workspace = Workspace::load()?;
        let (folder, name) = (workspace.boards(), board.unwrap_or(Board::DEFAULT));
        let file = folder.join(format!("{name}.toml"));
        if name.contains(['/', '\\']) || !file.is_file() {
            bail!("there is no board `{name}`; there are: {}", Board::names(&folder)?.join(", "));
        }
        let mut board = Board::load(&file)?;
        board.compile_device_tree(&workspace.products())?;
        Ok(Context { workspace, board, progress: Progress::new(verbose), aim: Aim::default() })
    }

    /// Finds the tools, installing them if need be.
    ///
    /// # Errors
    ///
    /// A tool is missing that only the user can provide.
    pub fn toolchain(&self, need: Need) -> Result<Toolchain> {
        let c_example = match need {
            Need::Boot | Need::OneProgram => CExample::WhereClangIs,
            Need::Everything => CExample::Required,
        };
        let mut toolchain = Toolchain::ensure(&self.board.qemu.program, c_example, &self.progress)?;
        toolchain.aim = self.aim;
        Ok(toolchain)
    }

    /// Finds the tools and builds the files of a boot.
    ///
    /// # Errors
    ///
    /// As [`Context::toolchain`] and [`build::build`].
    pub fn build(&self, need: Need) -> Result<(Toolchain, Products)> {
        let toolchain = self.toolchain(need)?;
        let broken = if need == Need::OneProgram { Broken::LeaveOut } else { Broken::Fail };
        let products = build::build(&self.workspace, &toolchain, &self.progress, broken)?;
        Ok((toolchain, products))
    }

    /// Finds the tools and builds the microkernel and its root task.
    ///
    /// # Errors
    ///
    /// As [`Context::toolchain`] and [`build::microkernel`].
    pub fn build_microkernel(&self, variation: Variation) -> Result<(Toolchain, Products)> {
        let toolchain = self.toolchain(Need::Boot)?;
        let products = build::microkernel(&self.workspace, &toolchain, &self.progress, variation)?;
        Ok((toolchain, products))
    }

    /// Finds the tools and builds the microkernel, to boot a root task of the workspace.
    ///
    /// # Errors
    ///
    /// As [`Context::build_microkernel`], and there is no such root task.
    pub fn build_root_task(&self, variation: Variation, name: &str) -> Result<(Toolchain, Products)> {
        let (toolchain, mut products) = self.build_microkernel(variation)?;
        if !products.programs.iter().any(|program| program == name) {
            anyhow::bail!("the workspace has no root task `{name}`");
        }
        products.initramfs = self.workspace.products().join(name);
        Ok((toolchain, products))
    }

    /// Returns the variation of the microkernel that a machine needs.
    pub fn variation(&self, machine: &Machine) -> Variation {
        let harts = match machine.harts.unwrap_or(self.board.defaults.harts) {
            1 => Harts::One,
            _ => Harts::Several,
        };
        Variation::new(harts)
    }

    /// Returns a boot's choices, with the board's defaults for the user's omissions.
    pub fn configuration(&self, products: &Products, machine: &Machine, command_line: String) -> Configuration {
        let defaults = &self.board.defaults;
        let memory = machine.memory.clone().filter(|_| !defaults.is_memory_fixed);
        Configuration {
            machine: machine.machine.unwrap_or(defaults.machine),
            harts: machine.harts.unwrap_or(defaults.harts),
            memory: memory.unwrap_or_else(|| defaults.memory.clone()),
            kernel: products.kernel.clone(),
            initramfs: products.initramfs.clone(),
            command_line: format!("{}{command_line}", UserInterrupts::word(machine.user_interrupts)),
            network: Network::default(),
            forwards: Vec::new(),
            clock: Clock::Host,
            gdb_port: None,
            disks: Vec::new(),
            disk_pace: None,
            share: None,
            flash: None,
        }
    }

    /// Returns the path of a boot's serial log.
    pub fn log(&self, name: &str) -> PathBuf {
        self.workspace.logs().join(format!("{name}.log"))
    }
}

/// The kernel's command line that starts a program of the initramfs.
///
/// # Errors
///
/// The path contains a space.
pub fn command_line(program: &str, arguments: &[String]) -> Result<String> {
    let path = if program.starts_with('/') { program.to_string() } else { format!("/bin/{program}") };
    if path.contains(char::is_whitespace) {
        anyhow::bail!("`{path}` cannot be the path of a program: it contains a space");
    }
    let arguments: Vec<_> = arguments.iter().map(|argument| quoted(argument)).collect();
    let arguments = if arguments.is_empty() { String::new() } else { format!(" -- {}", arguments.join(" ")) };
    Ok(format!("init={path}{arguments}"))
}

/// Returns an argument as the kernel reads it: in double quotes, if it could be taken for another number of words.
fn quoted(argument: &str) -> String {
    if !argument.is_empty() && !argument.contains(|character: char| character.is_whitespace() || character == '"') {
        return argument.into();
    }
    format!("\"{}\"", argument.replace('\\', r"\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_name_program_and_arguments() {
        let words = |text: &str| text.split(' ').map(str::to_string).collect::<Vec<_>>();
        assert_eq!(command_line("hello", &[]).unwrap(), "init=/bin/hello");
        assert_eq!(command_line("/bin/x", &words("-a b --")).unwrap(), "init=/bin/x -- -a b --");
        let line = command_line("shell", &["-c".into(), r#"echo "a\b" 'c'"#.into(), r"d\e".into(), String::new()]);
        assert_eq!(line.unwrap(), r#"init=/bin/shell -- -c "echo \"a\\b\" 'c'" d\e """#);
        assert!(command_line("hello world", &[]).is_err());
        assert!(command_line("", &[]).is_ok_and(|line| line == "init=/bin/"));
    }
}
