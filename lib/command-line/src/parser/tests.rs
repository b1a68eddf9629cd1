use super::*;

/// Writes a tree in brackets, one kind for each kind of node.
fn show(script: &Script) -> String {
    let statements: Vec<String> = script
        .statements
        .iter()
        .map(|statement| {
            let mut text = show_pipeline(&statement.first);
            for (connector, pipeline) in &statement.rest {
                text += if *connector == Connector::And { " && " } else { " || " };
                text += &show_pipeline(pipeline);
            }
            if statement.is_in_background { text + " &" } else { text }
        })
        .collect();
    statements.join("; ")
}

fn show_pipeline(pipeline: &Pipeline) -> String {
    let commands: Vec<String> = pipeline.commands.iter().map(show_command).collect();
    (if pipeline.is_negated { "! " } else { "" }).to_string() + &commands.join(" | ")
}

fn show_command(command: &Command) -> String {
    let mut text = match &command.kind {
        CommandKind::Simple { assignments, words } => {
            let assignments = assignments.iter().map(|(name, word)| format!("{name}={}", show_word(word)));
            assignments.chain(words.iter().map(show_word)).collect::<Vec<_>>().join(" ")
        }
        CommandKind::If { branches, otherwise } => {
            let branches: Vec<String> =
                branches.iter().map(|(condition, body)| format!("{} ? {}", show(condition), show(body))).collect();
            let otherwise = otherwise.as_ref().map(|body| format!(" : {}", show(body))).unwrap_or_default();
            format!("if({}{otherwise})", branches.join(" : "))
        }
        CommandKind::While { condition, body, is_until } => {
            format!("{}({} ? {})", if *is_until { "until" } else { "while" }, show(condition), show(body))
        }
        CommandKind::For { variable, words, body } => {
            let words = words.as_ref().map(|words| words.iter().map(show_word).collect::<Vec<_>>().join(","));
            format!("for({variable} in {} ? {})", words.unwrap_or("@".into()), show(body))
        }
        CommandKind::Case { word, arms } => {
            let arms = arms.iter().map(|(patterns, script)| {
                format!("{} ? {}", patterns.iter().map(show_word).collect::<Vec<_>>().join("|"), show(script))
            });
            format!("case({} in {})", show_word(word), arms.collect::<Vec<_>>().join(" : "))
        }
        CommandKind::Function { name, body } => format!("{name}() {}", show_command(body)),
        CommandKind::Group(script) => format!("{{{}}}", show(script)),
        CommandKind::Subshell(script) => format!("({})", show(script)),
    };
    for Redirection { descriptor, target } in &command.redirections {
        text += &match target {
            Target::Read(word) => format!(" {descriptor}<{}", show_word(word)),
            Target::Write(word) => format!(" {descriptor}>{}", show_word(word)),
            Target::Append(word) => format!(" {descriptor}>>{}", show_word(word)),
            Target::Text(word) => format!(" {descriptor}<<{}", show_word(word).replace('\n', "/")),
            Target::Duplicate(from) => format!(" {descriptor}>&{from}"),
        };
    }
    text
}

/// Quoted parts are in angles.
fn show_word(word: &Word) -> String {
    let quoted = |text: String, is_quoted: bool| if is_quoted { format!("<{text}>") } else { text };
    let show_part = |part: &Part| match part {
        Part::Text { text, is_quoted } => quoted(text.clone(), *is_quoted),
        Part::Parameter { parameter, change: None, is_quoted } => quoted(format!("${parameter:?}"), *is_quoted),
        Part::Parameter { parameter, change: Some(change), is_quoted } => {
            let text = match change {
                Change::Length => "#".into(),
                Change::Unless { is_empty_enough, otherwise, word } => {
                    format!("{}{otherwise:?} {}", if *is_empty_enough { ":" } else { "" }, show_word(word))
                }
                Change::Without { is_suffix, is_longest, pattern } => {
                    let mark = if *is_suffix { "%" } else { "#" };
                    format!("{} {}", mark.repeat(1 + usize::from(*is_longest)), show_word(pattern))
                }
            };
            quoted(format!("${parameter:?}[{text}]"), *is_quoted)
        }
        Part::Arithmetic { expression, is_quoted } => quoted(format!("$(({}))", show_word(expression)), *is_quoted),
        Part::Output { script, is_quoted } => quoted(format!("$({})", show(script)), *is_quoted),
        Part::Home => "~".into(),
    };
    word.parts.iter().map(show_part).collect()
}

fn parsed(text: &str) -> String {
    show(&parse(text).unwrap_or_else(|error| panic!("{text}: {error}")))
}

fn refused(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn commands_are_divided() {
    for (text, expected) in [
        ("", ""),
        (" \n\t # a comment\n", ""),
        ("echo a  b", "echo a b"),
        ("a; b\nc", "a; b; c"),
        ("a & b &", "a &; b &"),
        ("a&&b||c", "a && b || c"),
        ("a |b| c", "a | b | c"),
        ("! a | b", "! a | b"),
        ("a &&\n\n b |\n c", "a && b | c"),
        ("echo a#b #c", "echo a#b"),
        ("a \\\n b", "a b"),
        ("echo if then", "echo if then"),
    ] {
        assert_eq!(parsed(text), expected, "{text}");
    }
}

#[test]
fn words_keep_their_quotes() {
    for (text, expected) in [
        ("'a b'", "<a b>"),
        ("a'b'\"c\"d", "a<bc>d"),
        (r#""a\"b\\c\d""#, r#"<a"b\c\d>"#),
        (r"a\ b\*", "a< >b<*>"),
        ("''", "<>"),
        ("\"\"", "<>"),
        ("$X-${Y}z", "$Variable(\"X\")-$Variable(\"Y\")z"),
        ("\"$X\" $", "<$Variable(\"X\")> $"),
        ("$1$23 ${23}", "$Position(1)$Position(2)3 $Position(23)"),
        ("$? $$ $# $@ $* $!", "$Status $Process $Count $Each $Together $Job"),
        ("\"$@\"", "<$Each>"),
        ("$(a; b $(c))", "$(a; b $(c))"),
        ("\"x$(a 'b\")')\"", "<x><$(a <b\")>)>"),
        ("~ ~/x a~ ~x '~'", "~ ~/x a~ ~x <~>"),
        ("'äö'€", "<äö>€"),
    ] {
        assert_eq!(parsed(text), expected, "{text}");
    }
}

#[test]
fn assignments_and_redirections_are_told_from_words() {
    for (text, expected) in [
        ("X=1", "X=1"),
        ("X= Y='a b' c Z=3", "X= Y=<a b> c Z=3"),
        ("1X=2", "1X=2"),
        ("a <b >c", "a 0<b 1>c"),
        ("a>>b 2>c", "a 1>>b 2>c"),
        ("a 2>&1 >&2", "a 2>&1 1>&2"),
        (">a", " 1>a"),
        ("a2>b", "a2 1>b"),
        ("X=1 >b c", "X=1 c 1>b"),
        ("{ a; } >b 2>&1", "{a} 1>b 2>&1"),
    ] {
        assert_eq!(parsed(text), expected, "{text}");
    }
    let script = parse("X=~/y 1X=2").unwrap();
    let CommandKind::Simple { assignments, words } = &script.statements[0].first.commands[0].kind else { panic!() };
    assert_eq!((assignments.len(), words.len()), (1, 1), "the second is no name");
}

#[test]
fn compound_commands_have_bodies() {
    for (text, expected) in [
        ("if a; then b; fi", "if(a ? b)"),
        ("if a\nthen b\nelif c; then d; else e; fi | f", "if(a ? b : c ? d : e) | f"),
        ("while a; do b; c; done", "while(a ? b; c)"),
        ("until a; do b; done", "until(a ? b)"),
        ("for x in a 'b c' $y; do d; done", "for(x in a,<b c>,$Variable(\"y\") ? d)"),
        ("for x; do d; done", "for(x in @ ? d)"),
        ("for x\ndo d; done", "for(x in @ ? d)"),
        ("{ a; b; }", "{a; b}"),
        ("(a; b) | c", "(a; b) | c"),
        ("(a)&", "(a) &"),
        ("if (a) then b; fi", "if((a) ? b)"),
        (
            "case $x in a|b) c; d;; (*.rs) ;; 'x y') e\nesac",
            "case($Variable(\"x\") in a|b ? c; d : *.rs ?  : <x y> ? e)",
        ),
        ("case a in esac", "case(a in )"),
        ("case a in\n\nb)\nc\n;;\nesac | d", "case(a in b ? c) | d"),
        ("f() { a; }; f b", "f() {a}; f b"),
        ("my-f ()\n(a) >b", "my-f() (a) 1>b"),
        ("f() if a; then b; fi", "f() if(a ? b)"),
        ("in=1 esac=2; echo case in esac", "in=1 esac=2; echo case in esac"),
    ] {
        assert_eq!(parsed(text), expected, "{text}");
    }
}

#[test]
fn parameters_are_changed() {
    for (text, expected) in [
        ("${X-a b}", "$Variable(\"X\")[Use a b]"),
        ("${X:-}", "$Variable(\"X\")[:Use ]"),
        ("${X:=$Y}z", "$Variable(\"X\")[:Assign $Variable(\"Y\")]z"),
        ("\"${X?it's \"no\"}\"", "<$Variable(\"X\")[Fail <it's no>]>"),
        ("${1:+'a}b'\\}}", "$Position(1)[:UseIfSet <a}b}>]"),
        ("${#X} ${#} ${#@}", "$Variable(\"X\")[#] $Count $Each[#]"),
        ("${X#*/} ${X##*/}", "$Variable(\"X\")[# */] $Variable(\"X\")[## */]"),
        ("\"${X%.*}${X%%'.'*}\"", "<$Variable(\"X\")[% .*]><$Variable(\"X\")[%% <.>*]>"),
        ("${X:-${Y:-$(a)}}", "$Variable(\"X\")[:Use $Variable(\"Y\")[:Use $(a)]]"),
        ("$((1 + (2 * $X)))", "$((<1 + (2 * ><$Variable(\"X\")><)>))"),
        ("\"$((1))\"", "<$((<1>))>"),
    ] {
        assert_eq!(parsed(text), expected, "{text}");
    }
}

#[test]
fn texts_stand_below_their_command() {
    for (text, expected) in [
        ("a <<E\nb $X \\$Y\nE\nc", "a 0<<<b ><$Variable(\"X\")>< $Y/>; c"),
        ("a <<'E' | b\n$X\n\\\nE", "a 0<<<$X/\\/> | b"),
        ("a <<-E\n\tb\n\t\tE\nc", "a 0<<<b/>; c"),
        ("a <<E <<F; g\n1\nE\n2\nF\nh", "a 0<<<1/> 0<<<2/>; g; h"),
        ("{ a; } 2<<E\nE\nb", "{a} 2<<; b"),
        ("while a; do b <<E; done\n1\nE\nc", "while(a ? b 0<<<1/>); c"),
        ("a <<E &&\n1\nE\nb", "a 0<<<1/> && b"),
        ("$(a <<E\n)\nE\n)", "$(a 0<<<)/>)"),
        ("a <<E\nit's \"b\"\nE\n", "a 0<<<it's \"b\"/>"),
    ] {
        assert_eq!(parsed(text), expected, "{text}");
    }
}

#[test]
fn a_statement_knows_its_text() {
    let texts = |text: &str| -> Vec<String> {
        parse(text).unwrap().statements.into_iter().map(|statement| statement.text).collect()
    };
    assert_eq!(texts(" sleep 1 & a | b && c; d"), ["sleep 1", "a | b && c", "d"]);
}

#[test]
fn errors_name_the_token() {
    for (text, expected) in [
        ("|", "unexpected `|`"),
        ("a || | b", "unexpected `|`"),
        ("a ;; b", "unexpected `;;`"),
        ("a && ; b", "unexpected `;`"),
        ("; a", "unexpected `;`"),
        (")", "unexpected `)`"),
        ("a )", "unexpected `)`"),
        ("a (b)", "unexpected `(`"),
        ("fi", "unexpected `fi`"),
        ("if a; then fi", "unexpected `fi`"),
        ("if a; b; fi", "unexpected `fi`"),
        ("{ a; } b", "unexpected `b`"),
        ("a > | b", "unexpected `|`"),
        ("a >\nb", "unexpected end of the line"),
        ("for 1 in a; do b; done", "unexpected `1`"),
        ("a 3> b", "`3` is not known here as a descriptor; there are 0, 1 and 2"),
        ("a >&-", "`-` is not known here as a descriptor; there are 0, 1 and 2"),
        ("a <<< b", "`<<<` is not known here"),
        ("a << $b\n", "`$` is not known here behind `<<`"),
        ("a <<E 'x\ny'\nE\n", "`<<` is not known here in a line that goes on in the next"),
        ("a <<E \\\nE\n", "`<<` is not known here in a line that goes on in the next"),
        ("`a`", "``` is not known here; write `$(…)`"),
        ("${X:1}", "`${X:1}` is not known here"),
        ("${#X-1}", "`${#X-1}` is not known here"),
        ("${1=x}", "`${1=x}` is not known here"),
        ("${X:#y}", "`${X:#y}` is not known here"),
        ("case x on", "unexpected `on`"),
        ("case x in a b) c;; esac", "unexpected `b`"),
        ("case x in ;; esac", "unexpected `;;`"),
        ("esac", "unexpected `esac`"),
        ("f() a", "`f` is not known here() without `{`"),
        ("f() g() { a; }", "`f` is not known here() without `{`"),
        ("function f { a; }", "`function` is not known here"),
        ("a |& b", "`|&` is not known here; write `2>&1 |`"),
    ] {
        assert_eq!(refused(text), expected, "{text}");
    }
}

#[test]
fn an_unfinished_text_is_told_from_a_wrong_one() {
    for text in [
        "a |",
        "a &&",
        "'a",
        "\"a",
        "a \\",
        "$(a",
        "${a",
        "if a",
        "if a; then b",
        "while a; do",
        "{ a;",
        "(a",
        "for",
        "a >",
        "a <<E",
        "a <<E\nb",
        "a <<E\nb\n E\n",
        "${X:-a",
        "$((1 + (2)",
        "case",
        "case a in",
        "case a in b",
        "case a in b) c",
        "case a in b) c;;",
        "f()",
        "f() { a;",
    ] {
        assert!(matches!(parse(text), Err(SyntaxError::Unfinished(_))), "{text}: {:?}", parse(text));
    }
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| "(".repeat(depth) + "a" + &")".repeat(depth);
    assert!(parse(&nested(1)).is_ok());
    let spaced = |depth: usize| "( ".repeat(depth) + "a" + &" )".repeat(depth);
    assert!(parse(&spaced(DEEPEST - 1)).is_ok());
    assert_eq!(parse(&spaced(DEEPEST)), Err(SyntaxError::TooDeep));
    for opening in [
        "( ",
        "$(",
        "\"$(",
        "{ ",
        "if ",
        "while ",
        "! ( ",
        "a $(b ",
        "${X:-",
        "\"${X:-",
        "$((",
        "case a in b) ",
        "f() { ",
        "${X#",
    ] {
        assert!(parse(&opening.repeat(100_000)).is_err(), "{opening}");
    }
}

/// Tokens of the language, in any order.
fn tokens() -> impl proptest::strategy::Strategy<Value = String> {
    const TOKENS: [&str; 56] = [
        "a", "b=", "X=1", " ", " ", "\n", ";", "&", "|", "&&", "||", "(", ")", "<", ">", ">>", "2>&1", ">&", "'", "\"",
        "\\", "$", "$(", "${", "}", "{ ", "if ", "then ", "else ", "elif ", "fi", "while ", "until ", "for ", "in ",
        "do ", "done", "! ", "#", "~", "*", "ä", "$@", "`", "case ", "esac", ";;", "<<E", "\nE\n", "f()", ":-", "$((",
        "))", "%", "<<-", "${#",
    ];
    use proptest::strategy::Strategy;
    proptest::collection::vec(proptest::sample::select(&TOKENS[..]), 0..24).prop_map(|tokens| tokens.concat())
}

proptest::proptest! {
    #![proptest_config(property::cases(2048))]

    #[test]
    fn every_text_is_a_script_or_an_error(text in tokens()) {
        if let Err(error) = parse(&text) {
            proptest::prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn every_string_is_a_script_or_an_error(text in ".{0,40}") {
        let _ = parse(&text);
    }

    #[test]
    fn a_quoted_text_is_one_word_of_that_text(text in "[^']{0,20}") {
        let script = parse(&format!("a '{text}'")).unwrap();
        let CommandKind::Simple { words, .. } = &script.statements[0].first.commands[0].kind else { panic!() };
        proptest::prop_assert_eq!(words.len(), 2);
        proptest::prop_assert_eq!(&words[1].parts, &[Part::Text { text, is_quoted: true }]);
    }
}
