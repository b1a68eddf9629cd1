//! `#[cops::main]`, and a part of `cops::select!`.
//!
//! The attribute reads four tokens of the function and passes it to a macro of `cops`, and the other macro leaves out
//! words; that needs no parser, so this crate has no dependencies.
#![forbid(unsafe_code)]

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Makes an `async fn main()` the first coroutine of the process.
///
/// The function may return nothing, an exit status (`i32`), or a `Result` of either whose error is printed. Arguments
/// in parentheses set the number of workers and main's priority: `#[cops::main(workers = 4, priority = 2)]`; without
/// them there is one worker, and the priority is the default.
#[doc(alias("tokio::main", "block_on"))]
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = function.clone().into_iter().collect();
    match (check(&tokens), options(arguments)) {
        (Ok(name), Ok((workers, priority))) => {
            // The caller of the function depends on the features of `cops`, which only its own macros know.
            let mut call: TokenStream = "::cops::main_function!".parse().expect("this is the name of a macro");
            let arguments = format!("{workers}, {priority}, {name},");
            let arguments: TokenStream = arguments.parse().expect("these are expressions and a name");
            let body = Group::new(Delimiter::Brace, arguments.into_iter().chain(function).collect());
            call.extend([TokenTree::from(body)]);
            call
        }
        (Err(message), _) | (_, Err(message)) => {
            let error: TokenStream = format!("::core::compile_error!({message:?});").parse().expect("this is Rust");
            function.into_iter().chain(error).collect()
        }
    }
}

/// Leaves `mut` and `ref` out of a pattern, so that it can be tried on a reference. `cops::select!` looks in this way
/// whether the output of a branch matches, before the futures of the other branches are dropped.
#[doc(hidden)]
#[proc_macro]
pub fn by_reference(pattern: TokenStream) -> TokenStream {
    let keeps = |token: &TokenTree| match token {
        TokenTree::Ident(word) => !matches!(word.to_string().as_str(), "mut" | "ref"),
        _ => true,
    };
    let strip = |token| match token {
        TokenTree::Group(group) => {
            let mut stripped = Group::new(group.delimiter(), by_reference(group.stream()));
            stripped.set_span(group.span());
            stripped.into()
        }
        other => other,
    };
    pattern.into_iter().filter(keeps).map(strip).collect()
}

/// Returns the name of the function, if it is an async function without parameters.
fn check(tokens: &[TokenTree]) -> Result<String, String> {
    let is =
        |token: &TokenTree, word: &str| matches!(token, TokenTree::Ident(identifier) if identifier.to_string() == word);
    let position = tokens.iter().position(|token| is(token, "fn")).ok_or("#[cops::main] belongs on a function")?;
    if !tokens[..position].iter().any(|token| is(token, "async")) {
        return Err("the main function must be async: it is the first coroutine of the process".into());
    }
    let Some(TokenTree::Ident(name)) = tokens.get(position + 1) else {
        return Err("the function has no name".into());
    };
    match tokens.get(position + 2) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis && group.stream().is_empty() => {
            Ok(name.to_string())
        }
        _ => Err("the main function has no parameters: read cops::arguments()".into()),
    }
}

/// Returns the number of workers and the priority, as Rust expressions.
fn options(arguments: TokenStream) -> Result<(String, String), String> {
    let (mut workers, mut priority) = ("1".to_string(), "::cops::Priority::DEFAULT".to_string());
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    let separates = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
    for option in tokens.split(separates).filter(|option| !option.is_empty()) {
        let [TokenTree::Ident(name), TokenTree::Punct(equals), value @ ..] = option else {
            return Err("expected `workers = N` or `priority = N`".into());
        };
        if equals.as_char() != '=' || value.is_empty() {
            return Err(format!("`{name}` needs a value"));
        }
        let value: String = value.iter().map(ToString::to_string).collect();
        match name.to_string().as_str() {
            "workers" => workers = value,
            "priority" => priority = format!("::cops::Priority::saturating({value})"),
            other => return Err(format!("unknown option `{other}`: there are `workers` and `priority`")),
        }
    }
    Ok((workers, priority))
}
