//! The tree of a script.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Statements, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// The statements.
    pub statements: Vec<Statement>,
}

/// Pipelines that are joined by `&&` and `||`, up to `;`, `&` or the end of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The pipeline that always runs.
    pub first: Pipeline,
    /// The others with their conditions.
    pub rest: Vec<(Connector, Pipeline)>,
    /// Whether `&` is behind it.
    pub is_in_background: bool,
    /// Its text, for messages about it.
    pub text: String,
}

/// The condition on which the pipeline behind it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connector {
    /// `&&`: the pipelines before it have succeeded.
    And,
    /// `||`: they have failed.
    Or,
}

/// Commands that run at the same time, the output of each being the input of the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Whether `!` stands before it.
    pub is_negated: bool,
    /// The commands, at least one.
    pub commands: Vec<Command>,
}

/// A command with its redirections, in the order in which they take effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The command itself.
    pub kind: CommandKind,
    /// Its redirections.
    pub redirections: Vec<Redirection>,
}

/// A command without its redirections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// A program or a command of the shell. Without words the assignments are the shell's own.
    Simple {
        /// Names and values before the words.
        assignments: Vec<(String, Word)>,
        /// The name and its arguments.
        words: Vec<Word>,
    },
    /// `if`: conditions with their bodies, the first of which may run; and the body behind `else`.
    If {
        /// Conditions with their bodies.
        branches: Vec<(Script, Script)>,
        /// The body behind `else`.
        otherwise: Option<Script>,
    },
    /// `while` and `until`.
    While {
        /// The condition.
        condition: Script,
        /// The repeated statements.
        body: Script,
        /// Whether the loop goes on while the condition fails.
        is_until: bool,
    },
    /// `for`; without words over the positional parameters.
    For {
        /// The variable.
        variable: String,
        /// The words whose values it gets.
        words: Option<Vec<Word>>,
        /// The repeated statements.
        body: Script,
    },
    /// `case`: the scripts with their patterns, the first of which may run.
    Case {
        /// The word that is compared.
        word: Word,
        /// Patterns with their scripts.
        arms: Vec<(Vec<Word>, Script)>,
    },
    /// `NAME() …`: gives a command a name.
    Function {
        /// Its name.
        name: String,
        /// The command.
        body: Arc<Command>,
    },
    /// `{ … }`.
    Group(Script),
    /// `( … )`, whose changes to variables and to the directory end with it.
    Subshell(Script),
}

/// Another file for a descriptor of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirection {
    /// 0, 1 or 2.
    pub descriptor: usize,
    /// The new file.
    pub target: Target,
}

/// The file of a redirection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `<`
    Read(Word),
    /// `>`
    Write(Word),
    /// `>>`
    Append(Word),
    /// `<<`: the text of the lines below.
    Text(Word),
    /// `>&` and `<&`: the file of another descriptor.
    Duplicate(usize),
}

/// Parts without a blank between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// The parts.
    pub parts: Vec<Part>,
}

/// A part of a word. A quoted one is neither split nor matched with names of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text as it is.
    Text {
        /// The text.
        text: String,
        /// Whether it is quoted.
        is_quoted: bool,
    },
    /// `$X`: a value.
    Parameter {
        /// Its name.
        parameter: Parameter,
        /// The change to its value.
        change: Option<Change>,
        /// Whether it is quoted.
        is_quoted: bool,
    },
    /// `$((…))`: the value of an expression.
    Arithmetic {
        /// The text of the expression.
        expression: Word,
        /// Whether it is quoted.
        is_quoted: bool,
    },
    /// `$(…)`: the output of a script.
    Output {
        /// The script.
        script: Script,
        /// Whether it is quoted.
        is_quoted: bool,
    },
    /// `~` at the beginning of a word.
    Home,
}

/// A change to a parameter's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `${#X}`: the number of its characters.
    Length,
    /// `${X-…}` and its like: another value for a parameter that is not set.
    Unless {
        /// Whether an empty value is another matter than none: with `:` it is not.
        is_empty_enough: bool,
        /// The use of the word.
        otherwise: Otherwise,
        /// The word.
        word: Word,
    },
    /// `${X#…}`, `${X##…}`, `${X%…}` and `${X%%…}`: without a part that has a pattern.
    Without {
        /// Whether the part is at the end.
        is_suffix: bool,
        /// Whether it is the longest such part.
        is_longest: bool,
        /// The pattern.
        pattern: Word,
    },
}

/// The use of the word for a parameter that is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// `-`: it is the value.
    Use,
    /// `=`: it becomes the parameter's value.
    Assign,
    /// `?`: it is the message of an error.
    Fail,
    /// `+`: it is the value of a parameter that *is* set.
    UseIfSet,
}

/// The name behind `$`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// `$X`: a variable's name.
    Variable(String),
    /// `$0` and the positional parameters.
    Position(usize),
    /// `$#`
    Count,
    /// `$@`: quoted, a word for each parameter.
    Each,
    /// `$*`: quoted, one word.
    Together,
    /// `$?`
    Status,
    /// `$$`
    Process,
    /// `$!`: the last job in the background.
    Job,
}
