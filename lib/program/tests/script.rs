//! First lines of scripts.

use program::script::{LINE_LENGTH, Script};
use proptest::prelude::*;

fn parts(head: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    Script::parse(head).map(|script| (script.interpreter, script.argument))
}

#[test]
fn a_line_has_a_path_and_one_argument() {
    assert_eq!(parts(b"#!/bin/sh\nexit"), Some((&b"/bin/sh"[..], None)));
    assert_eq!(parts(b"#! \t/bin/sh \t\nexit"), Some((&b"/bin/sh"[..], None)));
    assert_eq!(parts(b"#!/bin/awk  -f  two words \n"), Some((&b"/bin/awk"[..], Some(&b"-f  two words"[..]))));
    assert_eq!(parts(b"#!/bin/sh"), Some((&b"/bin/sh"[..], None)));
    assert_eq!(parts(b"#!/bin/sh\0-x\n"), Some((&b"/bin/sh"[..], None)));
}

#[test]
fn lines_without_a_path_are_refused() {
    for head in [&b""[..], b"#", b"#!", b"#!\n/bin/sh", b"#! \t\n", b"#!\0", b" #!/bin/sh\n"] {
        assert_eq!(parts(head), None, "{head:?}");
    }
}

/// A path that fills the bytes may be a part of a longer one; a cut argument is an argument.
#[test]
fn only_an_argument_may_be_cut() {
    let mut long: Vec<u8> = b"#!/".to_vec();
    long.resize(LINE_LENGTH + 10, b'a');
    assert_eq!(parts(&long), None);
    long[LINE_LENGTH - 1] = b'\n';
    assert_eq!(parts(&long).map(|(path, _)| path.len()), Some(LINE_LENGTH - 3));
    long[LINE_LENGTH - 1] = b' ';
    assert_eq!(parts(&long).map(|(path, _)| path.len()), Some(LINE_LENGTH - 3));
    long[LINE_LENGTH - 1] = b'a';
    long[10] = b' ';
    assert_eq!(parts(&long).map(|(_, argument)| argument.unwrap().len()), Some(LINE_LENGTH - 11));
    long.truncate(LINE_LENGTH - 1);
    long[10] = b'a';
    assert_eq!(parts(&long).map(|(path, _)| path.len()), Some(LINE_LENGTH - 3));
}

proptest! {
    #![proptest_config(property::cases(1024))]

    #[test]
    fn any_bytes_give_parts_of_the_line(
        bytes in prop::collection::vec(prop_oneof![Just(b' '), Just(b'\n'), any::<u8>()], 0..300),
    ) {
        let head = [b"#!", &bytes[..]].concat();
        if let Some(script) = Script::parse(&head) {
            let text = [script.interpreter, script.argument.unwrap_or_default()].concat();
            prop_assert!(!text.contains(&b'\n') && !script.interpreter.contains(&b' '));
            prop_assert!(!script.interpreter.is_empty() && text.len() <= LINE_LENGTH);
        }
    }
}
