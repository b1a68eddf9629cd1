//! Compares the reference page in the tree with the tables.

#[path = "../examples/reference.rs"]
mod reference;

#[test]
fn the_reference_page_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/calls.md");
    let present = std::fs::read_to_string(file).expect("docs/calls.md can be read");
    let page = reference::page();
    let same = present.lines().zip(page.lines()).take_while(|(old, new)| old == new).count();
    assert!(
        present == page,
        "docs/calls.md differs from the tables in line {}: cargo run -p abi-unix --example reference > docs/calls.md",
        same + 1
    );
}

#[test]
fn every_call_has_an_entry_of_its_own() {
    let page = reference::page();
    for call in abi_unix::SystemCall::ALL {
        let heading = format!("\n### {}\n", call.name());
        assert_eq!(page.matches(&heading).count(), 1, "{}", call.name());
    }
    assert!(!page.contains("crate::"), "a link of the source is left over");
}
