//! Other names for the things that write: `use … as …`, `pub use`, `type … = …`, wherever in the workspace they are.

use std::collections::BTreeMap;

use syn::{
    UseTree,
    visit::{self, Visit},
};

use super::Source;

/// Names in the workspace and the last part of what they stand for.
///
/// By name alone and for all files at once: one that means two things is taken for the one that writes. That may blame the
/// innocent, who can be listed, and does not let a `pub use` in another file through.
pub(crate) struct Aliases {
    meaning: BTreeMap<String, String>,
}

impl Aliases {
    pub(crate) fn of(sources: &[Source]) -> Self {
        let mut found = Found::default();
        for source in sources {
            found.visit_file(&source.tree);
        }
        Self {
            meaning: found.meaning,
        }
    }

    /// What a name stands for in the end.
    pub(crate) fn resolve<'a>(&'a self, name: &'a str) -> &'a str {
        let mut name = name;
        // An alias of an alias of …: ten deep is deep enough, and a circle ends.
        for _ in 0..10 {
            match self.meaning.get(name) {
                Some(meaning) => name = meaning,
                None => break,
            }
        }
        name
    }
}

#[derive(Default)]
struct Found {
    meaning: BTreeMap<String, String>,
}

impl Found {
    fn note(&mut self, alias: &syn::Ident, meaning: &syn::Ident) {
        if alias != meaning && alias != "_" {
            self.meaning.insert(alias.to_string(), meaning.to_string());
        }
    }

    fn note_tree(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.note_tree(&path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(tree)),
            UseTree::Rename(rename) => self.note(&rename.rename, &rename.ident),
            UseTree::Name(_) | UseTree::Glob(_) => {}
        }
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.note_tree(&item.tree);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        if let syn::Type::Path(path) = item.ty.as_ref()
            && let Some(last) = path.path.segments.last()
        {
            self.note(&item.ident, &last.ident);
        }
        visit::visit_item_type(self, item);
    }
}
