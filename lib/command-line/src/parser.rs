//! From text to tree: recursive descent over characters, with a bound on the depth.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::syntax::{
    Change, Command, CommandKind, Connector, Otherwise, Parameter, Part, Pipeline, Redirection, Script, Statement,
    Target, Word,
};

/// Greatest depth of commands within commands. Running them nests as deeply as parsing them does.
pub const DEEPEST: usize = 32;

/// Words that begin, divide or end a command, where a command can begin.
const RESERVED: [&str; 15] =
    ["if", "then", "elif", "else", "fi", "while", "until", "for", "do", "done", "case", "esac", "{", "}", "!"];

/// Words of shells' languages that this one lacks.
const FOREIGN: [&str; 2] = ["function", "select"];

/// The reason for which a text is no script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyntaxError {
    /// The text ends before this: more lines could complete it.
    Unfinished(&'static str),
    /// A token where none of its kind can be.
    Unexpected(Box<str>),
    /// Something that other shells know.
    Unknown(Box<str>, &'static str),
    /// More than [`DEEPEST`] commands within each other.
    TooDeep,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyntaxError::Unfinished(missing) => write!(formatter, "the text ends before {missing}"),
            SyntaxError::Unexpected(token) => write!(formatter, "unexpected {token}"),
            SyntaxError::Unknown(token, hint) => write!(formatter, "`{token}` is not known here{hint}"),
            SyntaxError::TooDeep => write!(formatter, "more than {DEEPEST} commands within each other"),
        }
    }
}

type Parsed<T> = Result<T, SyntaxError>;

/// Parses a script.
///
/// # Errors
///
/// The text is not a script, or not a complete one.
pub fn parse(text: &str) -> Parsed<Script> {
    let mut parser = Parser::new(text);
    let script = parser.script(&[])?;
    match parser.token() {
        None => Ok(script),
        Some(token) => Err(SyntaxError::Unexpected(token)),
    }
}

/// Returns whether a text can be a variable's name.
pub fn is_name(text: &str) -> bool {
    text.starts_with(begins_name) && text.chars().all(continues_name)
}

fn begins_name(character: char) -> bool {
    character == '_' || character.is_ascii_alphabetic()
}

fn continues_name(character: char) -> bool {
    begins_name(character) || character.is_ascii_digit()
}

/// Returns whether a character ends an unquoted word.
fn ends_word(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')')
}

struct Parser<'a> {
    text: &'a str,
    /// Offset of the next character.
    position: usize,
    depth: usize,
    /// Offset behind the texts of `<<` that are below this line.
    documents_end: Option<usize>,
}

/// The end of a text in which `$` has its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextEnd {
    /// `"`
    Quote,
    /// `}`, within quotes or not.
    Brace { is_quoted: bool },
    /// `))`
    Arithmetic,
    /// That of the parser's text.
    Document,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser { text, position: 0, depth: 0, documents_end: None }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.position += character.len_utf8();
        Some(character)
    }

    fn skip(&mut self, token: &str) -> bool {
        let is_next = self.rest().starts_with(token);
        if is_next {
            self.position += token.len();
        }
        is_next
    }

    fn take_while(&mut self, is_meant: fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|character| !is_meant(character)).unwrap_or(rest.len());
        self.position += length;
        &rest[..length]
    }

    /// Skips blanks, continued lines, and a comment.
    fn skip_blanks(&mut self) {
        loop {
            self.take_while(|character| matches!(character, ' ' | '\t' | '\r'));
            if !self.skip("\\\n") {
                break;
            }
        }
        // A comment begins where a word could.
        if self.peek() == Some('#') {
            self.take_while(|character| character != '\n');
        }
    }

    fn skip_lines(&mut self) {
        loop {
            self.skip_blanks();
            if !self.skip_line_end() {
                return;
            }
        }
    }

    /// Skips the end of a line, and the texts of `<<` below it.
    fn skip_line_end(&mut self) -> bool {
        let is_next = self.skip("\n");
        if is_next && let Some(end) = self.documents_end.take() {
            self.position = end;
        }
        is_next
    }

    /// Returns the next token in quotes, for messages; `None` at the end of the text.
    fn token(&mut self) -> Option<Box<str>> {
        self.skip_blanks();
        let rest = self.rest();
        let mut characters = rest.chars();
        let first = characters.next()?;
        if first == '\n' {
            return Some("end of the line".into());
        }
        let length = match first {
            '(' | ')' => 1,
            first if ends_word(first) => {
                first.len_utf8() + if characters.next() == Some(first) { first.len_utf8() } else { 0 }
            }
            _ => rest.find(ends_word).unwrap_or(rest.len()),
        };
        Some(alloc::format!("`{}`", &rest[..length]).into())
    }

    fn unexpected(&mut self, missing: &'static str) -> SyntaxError {
        self.token().map_or(SyntaxError::Unfinished(missing), SyntaxError::Unexpected)
    }

    /// Returns the reserved word that begins here.
    fn reserved(&mut self) -> Option<&'static str> {
        self.skip_blanks();
        let rest = self.rest();
        let word = &rest[..rest.find(ends_word).unwrap_or(rest.len())];
        RESERVED.into_iter().find(|reserved| *reserved == word)
    }

    fn skip_reserved(&mut self, word: &'static str) -> bool {
        self.reserved() == Some(word) && self.skip(word)
    }

    fn expect_reserved(&mut self, word: &'static str) -> Parsed<()> {
        if self.skip_reserved(word) { Ok(()) } else { Err(self.unexpected(word)) }
    }

    /// Parses statements up to a reserved word of `ends`, a parenthesis or the end of the text.
    fn script(&mut self, ends: &[&str]) -> Parsed<Script> {
        if self.depth == DEEPEST {
            return Err(SyntaxError::TooDeep);
        }
        self.depth += 1;
        let mut statements = Vec::new();
        loop {
            self.skip_lines();
            let is_at_end = matches!(self.peek(), None | Some(')')) || self.rest().starts_with(";;");
            if is_at_end || self.reserved().is_some_and(|word| ends.contains(&word)) {
                break;
            }
            let mut statement = self.statement()?;
            self.skip_blanks();
            match self.peek() {
                Some('\n') => _ = self.skip_line_end(),
                // The end of a pattern's script.
                Some(';') if self.rest().starts_with(";;") => {}
                Some(';') => _ = self.take(),
                Some('&') => {
                    self.take();
                    statement.is_in_background = true;
                }
                None | Some(')') => {}
                Some(_) if self.reserved().is_some_and(|word| ends.contains(&word)) => {}
                Some(_) => return Err(self.unexpected("the end of the command")),
            }
            statements.push(statement);
        }
        self.depth -= 1;
        Ok(Script { statements })
    }

    /// Parses the statements of a body, of which there is at least one.
    fn body(&mut self, ends: &[&str], missing: &'static str) -> Parsed<Script> {
        let script = self.script(ends)?;
        if script.statements.is_empty() { Err(self.unexpected(missing)) } else { Ok(script) }
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let start = self.position;
        let first = self.pipeline()?;
        let mut rest = Vec::new();
        let mut end = self.position;
        loop {
            self.skip_blanks();
            let connector = if self.skip("&&") {
                Connector::And
            } else if self.skip("||") {
                Connector::Or
            } else {
                break;
            };
            self.skip_lines();
            rest.push((connector, self.pipeline()?));
            end = self.position;
        }
        Ok(Statement { first, rest, is_in_background: false, text: self.text[start..end].trim().into() })
    }

    fn pipeline(&mut self) -> Parsed<Pipeline> {
        let is_negated = self.skip_reserved("!");
        let mut commands = Vec::new();
        loop {
            commands.push(self.command()?);
            self.skip_blanks();
            if self.rest().starts_with("||") || !self.skip("|") {
                return Ok(Pipeline { is_negated, commands });
            }
            if self.peek() == Some('&') {
                return Err(SyntaxError::Unknown("|&".into(), "; write `2>&1 |`"));
            }
            self.skip_lines();
        }
    }

    fn command(&mut self) -> Parsed<Command> {
        self.skip_blanks();
        let kind = match self.reserved() {
            Some("if") => self.conditional()?,
            Some(word @ ("while" | "until")) => {
                self.skip(word);
                let condition = self.body(&["do"], "a condition")?;
                CommandKind::While { condition, body: self.loop_body()?, is_until: word == "until" }
            }
            Some("for") => self.repetition()?,
            Some("case") => self.choice()?,
            Some("{") => {
                self.skip("{");
                let script = self.body(&["}"], "`}`")?;
                self.expect_reserved("}")?;
                CommandKind::Group(script)
            }
            Some(_) => return Err(self.unexpected("a command")),
            None if self.skip("(") => {
                if self.peek() == Some('(') {
                    return Err(SyntaxError::Unknown("((".into(), ""));
                }
                let script = self.body(&[], "`)`")?;
                self.close_parenthesis()?;
                CommandKind::Subshell(script)
            }
            None => match self.function_name() {
                Some(name) => {
                    self.skip_lines();
                    if self.depth == DEEPEST {
                        return Err(SyntaxError::TooDeep);
                    }
                    self.depth += 1;
                    let body = self.command()?;
                    self.depth -= 1;
                    if matches!(body.kind, CommandKind::Simple { .. } | CommandKind::Function { .. }) {
                        return Err(SyntaxError::Unknown(name.into(), "() without `{`"));
                    }
                    let kind = CommandKind::Function { name: name.into(), body: Arc::new(body) };
                    return Ok(Command { kind, redirections: Vec::new() });
                }
                None => return self.simple_command(),
            },
        };
        let mut redirections = Vec::new();
        while let Some(redirection) = self.redirection()? {
            redirections.push(redirection);
        }
        Ok(Command { kind, redirections })
    }

    fn close_parenthesis(&mut self) -> Parsed<()> {
        self.skip_lines();
        if self.skip(")") { Ok(()) } else { Err(self.unexpected("`)`")) }
    }

    fn conditional(&mut self) -> Parsed<CommandKind> {
        self.skip("if");
        let mut branches = Vec::new();
        loop {
            let condition = self.body(&["then"], "a condition")?;
            self.expect_reserved("then")?;
            branches.push((condition, self.body(&["elif", "else", "fi"], "`fi`")?));
            if self.skip_reserved("elif") {
                continue;
            }
            let otherwise = if self.skip_reserved("else") { Some(self.body(&["fi"], "`fi`")?) } else { None };
            self.expect_reserved("fi")?;
            return Ok(CommandKind::If { branches, otherwise });
        }
    }

    fn repetition(&mut self) -> Parsed<CommandKind> {
        self.skip("for");
        self.skip_blanks();
        let start = self.position;
        let variable = self.take_while(continues_name);
        if !is_name(variable) {
            self.position = start;
            return Err(self.unexpected("a variable"));
        }
        self.skip_lines();
        let mut words = None;
        let is_end = |rest: &str| rest.chars().next().is_none_or(ends_word);
        if self.rest().strip_prefix("in").is_some_and(is_end) {
            self.skip("in");
            let list: &mut Vec<Word> = words.insert(Vec::new());
            while let Some(word) = self.word()? {
                list.push(word);
            }
        }
        self.skip_blanks();
        let _ = self.skip(";");
        self.skip_lines();
        Ok(CommandKind::For { variable: variable.into(), words, body: self.loop_body()? })
    }

    fn choice(&mut self) -> Parsed<CommandKind> {
        self.skip("case");
        let Some(word) = self.word()? else { return Err(self.unexpected("a word")) };
        self.skip_lines();
        let is_end = |rest: &str| rest.chars().next().is_none_or(ends_word);
        if !self.rest().strip_prefix("in").is_some_and(is_end) {
            return Err(self.unexpected("`in`"));
        }
        self.skip("in");
        let mut arms = Vec::new();
        loop {
            self.skip_lines();
            if self.skip_reserved("esac") {
                return Ok(CommandKind::Case { word, arms });
            }
            let _ = self.skip("(");
            let mut patterns = Vec::new();
            loop {
                let Some(pattern) = self.word()? else { return Err(self.unexpected("a pattern")) };
                patterns.push(pattern);
                self.skip_blanks();
                if !self.skip("|") {
                    break;
                }
            }
            if !self.skip(")") {
                return Err(self.unexpected("`)`"));
            }
            arms.push((patterns, self.script(&["esac"])?));
            self.skip_lines();
            if !self.skip(";;") && self.reserved() != Some("esac") {
                return Err(self.unexpected("`esac`"));
            }
        }
    }

    /// Skips `NAME()`, and returns the name.
    fn function_name(&mut self) -> Option<&'a str> {
        let start = self.position;
        let name = self.take_while(|character| continues_name(character) || character == '-');
        if name.starts_with(begins_name) {
            self.skip_blanks();
            if self.skip("(") {
                self.skip_blanks();
                if self.skip(")") {
                    return Some(name);
                }
            }
        }
        self.position = start;
        None
    }

    fn loop_body(&mut self) -> Parsed<Script> {
        self.expect_reserved("do")?;
        let body = self.body(&["done"], "`done`")?;
        self.expect_reserved("done")?;
        Ok(body)
    }

    fn simple_command(&mut self) -> Parsed<Command> {
        let (mut assignments, mut words, mut redirections) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            if let Some(redirection) = self.redirection()? {
                redirections.push(redirection);
                continue;
            }
            if words.is_empty()
                && let Some(name) = self.assignment()
            {
                assignments.push((name, self.word_parts()?));
                continue;
            }
            let start = self.position;
            let Some(word) = self.word()? else { break };
            let text = self.text[start..self.position].trim();
            if words.is_empty() && FOREIGN.contains(&text) {
                return Err(SyntaxError::Unknown(text.into(), ""));
            }
            words.push(word);
        }
        if assignments.is_empty() && words.is_empty() && redirections.is_empty() {
            return Err(self.unexpected("a command"));
        }
        self.skip_blanks();
        if self.peek() == Some('(') {
            return Err(SyntaxError::Unexpected("`(`".into()));
        }
        Ok(Command { kind: CommandKind::Simple { assignments, words }, redirections })
    }

    /// Skips `NAME=`, and returns the name.
    fn assignment(&mut self) -> Option<String> {
        self.skip_blanks();
        let start = self.position;
        let name = self.take_while(continues_name);
        if is_name(name) && self.skip("=") {
            return Some(name.into());
        }
        self.position = start;
        None
    }

    fn redirection(&mut self) -> Parsed<Option<Redirection>> {
        self.skip_blanks();
        let start = self.position;
        let digits = self.take_while(|character| character.is_ascii_digit());
        if !self.rest().starts_with(['<', '>']) {
            self.position = start;
            return Ok(None);
        }
        let is_output = self.take() == Some('>');
        let descriptor = descriptor(digits, usize::from(is_output))?;
        let target = if self.skip("&") {
            let number = self.take_while(|character| character.is_ascii_alphanumeric() || character == '-');
            if number.is_empty() {
                return Err(self.unexpected("a descriptor"));
            }
            Target::Duplicate(crate::parser::descriptor(number, 0)?)
        } else if is_output && self.skip(">") {
            Target::Append(self.file()?)
        } else if !is_output && self.skip("<") {
            if self.peek() == Some('<') {
                return Err(SyntaxError::Unknown("<<<".into(), ""));
            }
            let strips_tabs = self.skip("-");
            Target::Text(self.document(strips_tabs)?)
        } else if self.rest().starts_with(['>', '|']) && is_output || self.rest().starts_with('>') {
            return Err(self.unexpected("a file"));
        } else if is_output {
            Target::Write(self.file()?)
        } else {
            Target::Read(self.file()?)
        };
        Ok(Some(Redirection { descriptor, target }))
    }

    /// Parses the word behind `<<`, and the text below this line up to a line of this word.
    fn document(&mut self, strips_tabs: bool) -> Parsed<Word> {
        let mark = self.file()?;
        let mut end = String::new();
        let mut is_quoted = false;
        for part in &mark.parts {
            let Part::Text { text, is_quoted: quoted } = part else {
                return Err(SyntaxError::Unknown("$".into(), " behind `<<`"));
            };
            end += text;
            is_quoted |= quoted;
        }
        let line_end = |text: &str| text.find('\n').ok_or(SyntaxError::Unfinished("the text of `<<`"));
        let start = match self.documents_end {
            Some(end) => end,
            None => {
                let rest = self.rest();
                let line = &rest[..line_end(rest)?];
                // The text is below the whole command.
                if line.ends_with('\\') || ['\'', '"'].into_iter().any(|mark| line.matches(mark).count() % 2 != 0) {
                    return Err(SyntaxError::Unknown("<<".into(), " in a line that goes on in the next"));
                }
                self.position + line.len() + 1
            }
        };
        let (mut text, mut position) = (String::new(), start);
        loop {
            let rest = &self.text[position..];
            let length = rest.find('\n').unwrap_or(rest.len());
            let line = if strips_tabs { rest[..length].trim_start_matches('\t') } else { &rest[..length] };
            if line.trim_end_matches('\r') == end && !rest.is_empty() {
                self.documents_end = Some((position + length + 1).min(self.text.len()));
                break;
            }
            if length == rest.len() {
                return Err(SyntaxError::Unfinished("the text of `<<`"));
            }
            text += line;
            text.push('\n');
            position += length + 1;
        }
        let mut word = Word::default();
        if is_quoted {
            word.push_text(&text, true);
        } else {
            let mut parser = Parser { depth: self.depth, ..Parser::new(&text) };
            parser.text_up_to(TextEnd::Document, &mut word)?;
        }
        Ok(word)
    }

    fn file(&mut self) -> Parsed<Word> {
        match self.word()? {
            Some(word) => Ok(word),
            None => Err(self.unexpected("a file")),
        }
    }

    /// Parses a word; `None` where none begins.
    fn word(&mut self) -> Parsed<Option<Word>> {
        self.skip_blanks();
        if self.peek().is_none_or(ends_word) {
            return Ok(None);
        }
        self.word_parts().map(Some)
    }

    fn word_parts(&mut self) -> Parsed<Word> {
        let mut word = Word::default();
        if self
            .rest()
            .strip_prefix('~')
            .is_some_and(|rest| rest.chars().next().is_none_or(|c| c == '/' || ends_word(c)))
        {
            self.take();
            word.parts.push(Part::Home);
        }
        while let Some(character) = self.peek().filter(|character| !ends_word(*character)) {
            match character {
                '\'' => self.single_quotes(&mut word)?,
                '"' => self.double_quotes(&mut word)?,
                '\\' => {
                    self.take();
                    match self.take() {
                        None => return Err(SyntaxError::Unfinished("the character behind `\\`")),
                        Some('\n') => {}
                        Some(character) => word.push_text(character.encode_utf8(&mut [0; 4]), true),
                    }
                }
                '$' => {
                    let part = self.dollar(false)?;
                    word.parts.push(part);
                }
                '`' => return Err(SyntaxError::Unknown("`".into(), "; write `$(…)`")),
                character => {
                    self.take();
                    word.push_text(character.encode_utf8(&mut [0; 4]), false);
                }
            }
        }
        Ok(word)
    }

    fn single_quotes(&mut self, word: &mut Word) -> Parsed<()> {
        self.take();
        let (text, _) = self.rest().split_once('\'').ok_or(SyntaxError::Unfinished("the second `'`"))?;
        self.position += text.len() + 1;
        word.push_text(text, true);
        Ok(())
    }

    fn double_quotes(&mut self, word: &mut Word) -> Parsed<()> {
        self.take();
        // Empty quotes make a word; those around parameters alone need not.
        if self.skip("\"") {
            word.push_text("", true);
            return Ok(());
        }
        self.text_up_to(TextEnd::Quote, word)
    }

    /// Parses a text in which `$` has its meaning, and skips its end.
    fn text_up_to(&mut self, end: TextEnd, word: &mut Word) -> Parsed<()> {
        let is_quoted = end != TextEnd::Brace { is_quoted: false };
        // Parentheses that are open within an expression.
        let mut open = 0;
        loop {
            let Some(character) = self.peek() else {
                return match end {
                    TextEnd::Document => Ok(()),
                    TextEnd::Quote => Err(SyntaxError::Unfinished("the second `\"`")),
                    TextEnd::Brace { .. } => Err(SyntaxError::Unfinished("`}`")),
                    TextEnd::Arithmetic => Err(SyntaxError::Unfinished("`))`")),
                };
            };
            match (character, end) {
                ('"', TextEnd::Quote) | ('}', TextEnd::Brace { .. }) => {
                    self.take();
                    return Ok(());
                }
                (')', TextEnd::Arithmetic) if open == 0 => {
                    return if self.skip("))") { Ok(()) } else { Err(self.unexpected("`))`")) };
                }
                ('(' | ')', TextEnd::Arithmetic) => {
                    open = if character == '(' { open + 1 } else { open - 1 };
                    self.take();
                    word.push_text(character.encode_utf8(&mut [0; 4]), true);
                }
                ('$', _) => {
                    let part = self.dollar(is_quoted)?;
                    word.parts.push(part);
                }
                ('`', _) => return Err(SyntaxError::Unknown("`".into(), "; write `$(…)`")),
                ('\'', TextEnd::Brace { is_quoted: false }) => self.single_quotes(word)?,
                ('"', TextEnd::Brace { .. }) => self.double_quotes(word)?,
                ('\\', _) => {
                    self.take();
                    match (self.peek(), end) {
                        (Some('\n'), _) => _ = self.take(),
                        (Some(character @ ('$' | '`' | '\\')), _)
                        | (Some(character @ '"'), TextEnd::Quote | TextEnd::Brace { .. })
                        | (Some(character), TextEnd::Brace { is_quoted: false })
                        | (Some(character @ '}'), TextEnd::Brace { .. }) => {
                            self.take();
                            word.push_text(character.encode_utf8(&mut [0; 4]), true);
                        }
                        _ => word.push_text("\\", true),
                    }
                }
                _ => {
                    self.take();
                    word.push_text(character.encode_utf8(&mut [0; 4]), is_quoted);
                }
            }
        }
    }

    /// Parses what `$` begins; a `$` that begins nothing is a text.
    fn dollar(&mut self, is_quoted: bool) -> Parsed<Part> {
        self.take();
        if self.rest().starts_with("((") {
            self.skip("((");
            let mut expression = Word::default();
            self.nested(|parser| parser.text_up_to(TextEnd::Arithmetic, &mut expression))?;
            return Ok(Part::Arithmetic { expression, is_quoted });
        }
        if self.skip("(") {
            let script = self.script(&[])?;
            self.close_parenthesis()?;
            return Ok(Part::Output { script, is_quoted });
        }
        if self.skip("{") {
            return self.nested(|parser| parser.braces(is_quoted));
        }
        Ok(match self.parameter(false) {
            Some(parameter) => Part::Parameter { parameter, change: None, is_quoted },
            None => Part::Text { text: "$".into(), is_quoted },
        })
    }

    /// Parses a part within another, as long as they are not too many.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == DEEPEST {
            return Err(SyntaxError::TooDeep);
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Parses a parameter in braces, behind the first, with the change to its value.
    fn braces(&mut self, is_quoted: bool) -> Parsed<Part> {
        let start = self.position;
        let counts = self.rest().starts_with('#') && !self.rest().starts_with("#}");
        if counts {
            self.skip("#");
        }
        let Some(parameter) = self.parameter(true) else { return Err(self.unknown_braces(start)) };
        let is_end = self.peek() == Some('}');
        if counts || is_end {
            if !is_end {
                return Err(self.unknown_braces(start));
            }
            self.take();
            return Ok(Part::Parameter { parameter, change: counts.then_some(Change::Length), is_quoted });
        }
        let is_empty_enough = self.skip(":");
        let change = match self.take() {
            Some(mark @ ('-' | '=' | '?' | '+')) => {
                let otherwise = match mark {
                    '-' => Otherwise::Use,
                    '=' if matches!(parameter, Parameter::Variable(_)) => Otherwise::Assign,
                    '=' => return Err(self.unknown_braces(start)),
                    '?' => Otherwise::Fail,
                    _ => Otherwise::UseIfSet,
                };
                let mut word = Word::default();
                self.text_up_to(TextEnd::Brace { is_quoted }, &mut word)?;
                Change::Unless { is_empty_enough, otherwise, word }
            }
            Some(mark @ ('#' | '%')) if !is_empty_enough => {
                let is_longest = self.skip(if mark == '#' { "#" } else { "%" });
                let mut pattern = Word::default();
                // Quotes around the parameter are none around its pattern.
                self.text_up_to(TextEnd::Brace { is_quoted: false }, &mut pattern)?;
                Change::Without { is_suffix: mark == '%', is_longest, pattern }
            }
            _ => return Err(self.unknown_braces(start)),
        };
        Ok(Part::Parameter { parameter, change: Some(change), is_quoted })
    }

    /// Returns the error of braces that are not known; they begin at this place.
    fn unknown_braces(&self, start: usize) -> SyntaxError {
        let rest = &self.text[start..];
        match rest.find('}') {
            None => SyntaxError::Unfinished("`}`"),
            Some(end) => SyntaxError::Unknown(alloc::format!("${{{}}}", &rest[..end]).into(), ""),
        }
    }

    /// Parses a parameter's name; a position has several digits in braces only.
    fn parameter(&mut self, is_in_braces: bool) -> Option<Parameter> {
        let parameter = match self.peek()? {
            '#' => Parameter::Count,
            '@' => Parameter::Each,
            '*' => Parameter::Together,
            '?' => Parameter::Status,
            '$' => Parameter::Process,
            '!' => Parameter::Job,
            '0'..='9' => {
                let digits = self.take_while(|character| character.is_ascii_digit());
                let used = if is_in_braces { digits } else { &digits[..1] };
                self.position -= digits.len() - used.len();
                return Some(Parameter::Position(used.parse().unwrap_or(usize::MAX)));
            }
            first if begins_name(first) => return Some(Parameter::Variable(self.take_while(continues_name).into())),
            _ => return None,
        };
        self.take();
        Some(parameter)
    }
}

/// Parses the number of a descriptor that a command begins with.
fn descriptor(digits: &str, default: usize) -> Parsed<usize> {
    match digits {
        "" => Ok(default),
        "0" => Ok(0),
        "1" => Ok(1),
        "2" => Ok(2),
        other => Err(SyntaxError::Unknown(other.into(), " as a descriptor; there are 0, 1 and 2")),
    }
}

impl Word {
    /// Adds text to the last part if it is text of the same kind.
    fn push_text(&mut self, more: &str, quoted: bool) {
        match self.parts.last_mut() {
            Some(Part::Text { text, is_quoted }) if *is_quoted == quoted => text.push_str(more),
            _ => self.parts.push(Part::Text { text: more.into(), is_quoted: quoted }),
        }
    }
}

#[cfg(test)]
mod tests;
