//! `#[sel4::root_task]`.
//!
//! The attribute reads three tokens of the function and adds an item behind it; that needs no parser, so this crate has
//! no dependencies.
#![forbid(unsafe_code)]

use proc_macro::{Delimiter, TokenStream, TokenTree};

/// Makes `fn main(boot: sel4::BootInformation)` the first function of a root task.
///
/// When it returns, the machine is halted; a kernel without debug calls stops the thread instead.
#[proc_macro_attribute]
pub fn root_task(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = function.clone().into_iter().collect();
    let found = if arguments.is_empty() { check(&tokens) } else { Err("#[root_task] takes no arguments".into()) };
    let item = match found {
        Ok(name) => format!(
            "#[unsafe(no_mangle)] extern \"Rust\" fn sel4_root_task(boot: ::sel4::BootInformation) {{ {name}(boot) }}"
        ),
        Err(message) => format!("::core::compile_error!({message:?});"),
    };
    let item: TokenStream = item.parse().expect("the item above is Rust");
    function.into_iter().chain(item).collect()
}

/// Returns the function's name, if it has one parameter or more; the compiler checks the parameter's type.
fn check(tokens: &[TokenTree]) -> Result<String, String> {
    let is =
        |token: &TokenTree, word: &str| matches!(token, TokenTree::Ident(identifier) if identifier.to_string() == word);
    let position = tokens.iter().position(|token| is(token, "fn")).ok_or("#[root_task] belongs on a function")?;
    if tokens[..position].iter().any(|token| is(token, "async")) {
        return Err("the root task's function cannot be async: nothing would run it".into());
    }
    let Some(TokenTree::Ident(name)) = tokens.get(position + 1) else {
        return Err("the function has no name".into());
    };
    match tokens.get(position + 2) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis && !group.stream().is_empty() => {
            Ok(name.to_string())
        }
        _ => Err("the root task's function takes the boot information: fn main(boot: sel4::BootInformation)".into()),
    }
}
