//! What in a file writes to an API server, by the look of it.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::{
    Attribute, Expr, ExprMethodCall, ExprPath, Macro, Meta,
    spanned::Spanned,
    visit::{self, Visit},
};

use super::aliases::Aliases;

/// The methods of `kube::Api` that write, with their number of arguments: the number tells `api.replace(a, b, c)` from
/// `text.replace(a, b)`.
const WRITES: &[(&str, usize)] = &[
    ("cordon", 1),
    ("create", 2),
    ("create_subresource", 4),
    ("create_token_request", 3),
    ("delete", 2),
    ("delete_collection", 2),
    ("evict", 2),
    ("patch", 3),
    ("patch_approval", 3),
    ("patch_ephemeral_containers", 3),
    ("patch_metadata", 3),
    ("patch_resize", 3),
    ("patch_scale", 3),
    ("patch_status", 3),
    ("patch_subresource", 4),
    ("replace", 3),
    ("replace_ephemeral_containers", 3),
    ("replace_resize", 3),
    ("replace_scale", 3),
    ("replace_status", 3),
    ("replace_subresource", 4),
    ("restart", 1),
    ("uncordon", 1),
];

/// What only a write takes: whoever names one of these is about to write.
const NAMES: &[&str] = &["DeleteParams", "EvictParams", "PatchParams", "PostParams"];

/// The same, and helpers that write on their own, under names that others may have too: only if they are kube's.
const KUBE_NAMES: &[&str] = &["Patch", "Recorder", "delete_and_finalize", "finalizer"];

/// The variants of kube's `Patch`, which tell it from any other.
const PATCHES: &[&str] = &["Apply", "Json", "Merge", "Strategic"];

/// The ways to send a request of one's own making through a client.
const RAW: &[&str] = &[
    "request",
    "request_status",
    "request_stream",
    "request_text",
    "send",
];

/// What a request that only reads is made with: `http::Request` and `kube::core::Request`.
const READS: &[&str] = &[
    "Request::get(",
    "Method::GET",
    ".list(",
    ".list_metadata(",
    ".get_metadata(",
    ".watch(",
];

/// Something that writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) line: usize,
    pub(crate) what: String,
}

pub(crate) fn findings(file: &syn::File, aliases: &Aliases) -> Vec<Finding> {
    let mut scan = Scan {
        aliases,
        locals: BTreeMap::new(),
        findings: Vec::new(),
    };
    scan.visit_file(file);
    scan.findings
}

/// `#[test]`, `#[tokio::test]` and `#[cfg(test)]`, `#[cfg(all(test, …))]`; not `#[cfg(not(test))]`.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            !condition.contains("not") && idents(&list.tokens).iter().any(|(ident, _)| ident == "test")
        }
        meta => meta
            .path()
            .segments
            .last()
            .is_some_and(|last| last.ident == "test"),
    })
}

struct Scan<'a> {
    aliases: &'a Aliases,
    /// `let name = value`, by name: to see what a request that is sent was made with.
    locals: BTreeMap<String, Vec<String>>,
    findings: Vec<Finding>,
}

impl Scan<'_> {
    fn find(&mut self, span: Span, what: impl Into<String>) {
        self.findings.push(Finding {
            line: span.start().line,
            what: what.into(),
        });
    }

    fn is_api(&self, name: &str) -> bool {
        self.aliases.resolve(name) == "Api"
    }

    fn writes(name: &str, arguments: usize) -> bool {
        WRITES.contains(&(name, arguments))
    }

    /// A request is fine if it visibly is a read, here or where the variable it comes from was set.
    fn is_read(&self, request: &Expr) -> bool {
        let text = text(request);
        let variable = text.split(['.', '?']).next().unwrap_or_default();
        let reads = |text: &str| READS.iter().any(|read| text.contains(read));
        reads(&text)
            || self
                .locals
                .get(variable)
                .is_some_and(|made| made.iter().all(|made| reads(made)))
    }

    /// Code within a macro call is just tokens: `.name(…)` and names are found, numbers of arguments by the commas.
    fn scan_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(ident) => {
                    let name = ident.to_string();
                    if NAMES.contains(&self.aliases.resolve(&name)) {
                        self.find(ident.span(), self.aliases.resolve(&name).to_owned());
                    }
                    let called =
                        at > 0 && matches!(&tokens[at - 1], TokenTree::Punct(dot) if dot.as_char() == '.');
                    let arguments = tokens[at + 1..].iter().find_map(|token| match token {
                        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => {
                            Some(arguments(group.stream()))
                        }
                        _ => None,
                    });
                    let by_writer = at > 1
                        && matches!(&tokens[at - 2], TokenTree::Ident(receiver) if is_writer(&receiver.to_string()));
                    if called
                        && !by_writer
                        && arguments.is_some_and(|arguments| Self::writes(&name, arguments))
                    {
                        self.find(ident.span(), name);
                    }
                }
                TokenTree::Group(group) => self.scan_tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Scan<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_test(&item.attrs) {
            return;
        }
        let tokens = idents(&quote_use(item));
        let of_kube = tokens.first().is_some_and(|(first, _)| is_kube(first));
        for (name, span) in &tokens {
            if NAMES.contains(&name.as_str()) || (of_kube && KUBE_NAMES.contains(&name.as_str())) {
                self.find(*span, name.clone());
            }
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init) {
            self.locals
                .entry(name.ident.to_string())
                .or_default()
                .push(text(&init.expr));
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let name = call.method.to_string();
        if Self::writes(&name, call.args.len()) && !by_writer(&call.receiver) {
            self.find(call.method.span(), name.clone());
        }
        // Everything has a `send`; only a client's is meant.
        let client = RAW.contains(&name.as_str())
            && (name != "send" || text(&call.receiver).to_lowercase().ends_with("client"));
        if client && call.args.len() == 1 && !self.is_read(&call.args[0]) {
            self.find(call.method.span(), name);
        }
        visit::visit_expr_method_call(self, call);
    }

    /// `Api::<X>::patch`, `Alias::patch`, `<Api<X>>::patch`, called or just named.
    fn visit_expr_path(&mut self, path: &'ast ExprPath) {
        let segments: Vec<String> = path
            .path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        let of_type = match &path.qself {
            Some(qself) => match qself.ty.as_ref() {
                syn::Type::Path(ty) => ty.path.segments.last().map(|last| last.ident.to_string()),
                _ => None,
            },
            None => segments.iter().rev().nth(1).cloned(),
        };
        let last = segments.last().map(String::as_str).unwrap_or_default();
        let writes = WRITES.iter().any(|(name, _)| *name == last);
        if writes && of_type.as_deref().is_some_and(|name| self.is_api(name)) {
            self.find(path.span(), last);
        }
        let of_client = of_type
            .as_deref()
            .is_some_and(|name| self.aliases.resolve(name) == "Client");
        if of_client && RAW.contains(&last) {
            self.find(path.span(), last);
        }
        visit::visit_expr_path(self, path);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        let of_kube = names.first().is_some_and(|first| is_kube(first));
        for (at, segment) in path.segments.iter().enumerate() {
            let meaning = self.aliases.resolve(&names[at]);
            let patches = names
                .get(at + 1)
                .is_some_and(|next| PATCHES.contains(&next.as_str()));
            if NAMES.contains(&meaning)
                || (of_kube && KUBE_NAMES.contains(&meaning))
                || (meaning == "Patch" && patches)
            {
                self.find(segment.ident.span(), meaning.to_owned());
            }
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.scan_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

/// A `Writer` has methods of the same names. It is called `writer`, everywhere: `self.writer`, `writer.dry_run()`.
fn by_writer(receiver: &Expr) -> bool {
    match receiver {
        Expr::Path(path) => path
            .path
            .segments
            .last()
            .is_some_and(|last| is_writer(&last.ident.to_string())),
        Expr::Field(field) => {
            matches!(&field.member, syn::Member::Named(name) if is_writer(&name.to_string()))
        }
        Expr::MethodCall(call) => {
            let kept = ["clone", "dry_run", "once", "retry", "timeout"];
            is_writer(&call.method.to_string())
                || (kept.contains(&call.method.to_string().as_str()) && by_writer(&call.receiver))
        }
        Expr::Call(call) => text(&call.func).contains("Writer::named"),
        Expr::Paren(inner) => by_writer(&inner.expr),
        Expr::Reference(inner) => by_writer(&inner.expr),
        _ => false,
    }
}

fn is_kube(name: &str) -> bool {
    name == "kube" || name.starts_with("kube_")
}

fn is_writer(name: &str) -> bool {
    name == "writer" || name.ends_with("_writer")
}

/// Source text without white space.
fn text(expression: &Expr) -> String {
    let tokens: TokenStream = syn::parse_quote!(#expression);
    tokens.to_string().split_whitespace().collect()
}

fn quote_use(item: &syn::ItemUse) -> TokenStream {
    let tree = &item.tree;
    syn::parse_quote!(#tree)
}

fn idents(tokens: &TokenStream) -> Vec<(String, Span)> {
    let mut found = Vec::new();
    for token in tokens.clone() {
        match token {
            TokenTree::Ident(ident) => found.push((ident.to_string(), ident.span())),
            TokenTree::Group(group) => found.extend(idents(&group.stream())),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    found
}

fn arguments(tokens: TokenStream) -> usize {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(comma) if comma.as_char() == ',');
    let trailing = tokens.last().is_some_and(is_comma);
    let commas = tokens.iter().filter(|token| is_comma(token)).count();
    if tokens.is_empty() {
        0
    } else {
        commas + usize::from(!trailing)
    }
}
