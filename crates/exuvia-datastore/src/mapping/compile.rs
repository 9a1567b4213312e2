//! From a spec to what converts: every expression and path is read once, and everything that is wrong is told at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use exuvia_api::{
    Conversion, DatastoreMigrationSpec, KeyPrefix, LabelSelector, Mapping, MappingMetadata, RewriteRule,
    StatusCopy,
};

use super::convert::Convert;
use super::error::InvalidSpec;
use super::expression::Program;
use super::path::Path;
use super::spec;

/// Conversions by the name of the mapping for which they are.
pub type Converters = BTreeMap<String, Arc<dyn Convert>>;

/// A spec that was read.
pub(super) struct Compiled {
    pub(super) mappings: Vec<CompiledMapping>,
    pub(super) rewrites: Vec<CompiledRewrite>,
    /// Of each `cutover.waitFor`, if it has one.
    pub(super) conditions: Vec<Option<Arc<Program>>>,
}

/// One mapping, with its place among the others.
pub(super) struct CompiledMapping {
    pub(super) index: usize,
    pub(super) declared: Mapping,
    pub(super) when: Option<Program>,
    pub(super) ready: Option<Program>,
    pub(super) name: Option<Program>,
    pub(super) namespace: Option<Program>,
    pub(super) annotations: Vec<(String, Program)>,
    pub(super) convert: Vec<(Path, Program)>,
    pub(super) remove: Vec<Path>,
    pub(super) converter: Option<Arc<dyn Convert>>,
}

impl CompiledMapping {
    /// Whether anything of it has to be evaluated.
    pub(super) fn evaluates(&self) -> bool {
        let programs = [&self.when, &self.ready, &self.name, &self.namespace];
        programs.into_iter().any(Option::is_some) || !self.annotations.is_empty() || !self.convert.is_empty()
    }
}

/// One rule for objects that are not moved.
pub(super) struct CompiledRewrite {
    pub(super) index: usize,
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) selector: LabelSelector,
    pub(super) when: Option<Program>,
    pub(super) convert: Vec<(Path, Program)>,
    pub(super) rewrite_keys: Vec<KeyPrefix>,
}

/// Reads a spec. It must be called on a thread of the pool.
pub(super) fn compile(
    spec: &DatastoreMigrationSpec,
    converters: &Converters,
) -> Result<Compiled, Vec<InvalidSpec>> {
    let mut compiler = Compiler {
        problems: spec::check(spec),
        mapping: None,
    };
    for name in converters
        .keys()
        .filter(|name| spec.mappings.iter().all(|mapping| mapping.name != **name))
    {
        let problem = format!("a conversion was given for \"{name}\": expected the name of a mapping");
        compiler
            .problems
            .push(InvalidSpec::new(None, "mappings", problem));
    }
    let mappings = spec
        .mappings
        .iter()
        .enumerate()
        .map(|(index, mapping)| compiler.mapping(index, mapping, converters.get(&mapping.name)))
        .collect();
    compiler.mapping = None;
    let rewrites = spec
        .references
        .rewrite
        .iter()
        .enumerate()
        .map(|(index, rule)| compiler.rewrite(index, rule))
        .collect();
    let conditions = spec
        .cutover
        .wait_for
        .iter()
        .enumerate()
        .map(|(index, wait)| {
            let path = format!("cutover.waitFor[{index}].when");
            compiler.optional(&path, &wait.when, &["object"]).map(Arc::new)
        })
        .collect();
    if compiler.problems.is_empty() {
        Ok(Compiled {
            mappings,
            rewrites,
            conditions,
        })
    } else {
        Err(compiler.problems)
    }
}

struct Compiler {
    problems: Vec<InvalidSpec>,
    /// The name of the mapping that is being read.
    mapping: Option<String>,
}

impl Compiler {
    fn problem(&mut self, path: &str, position: Option<(usize, usize)>, problem: String) {
        self.problems
            .push(InvalidSpec::new(self.mapping.as_deref(), path, problem).at(position));
    }

    fn expression(&mut self, path: &str, source: &str, variables: &[&str]) -> Option<Program> {
        match Program::compile(source, variables) {
            Ok(program) => Some(program),
            Err(rejected) => {
                self.problem(path, rejected.position, rejected.problem);
                None
            }
        }
    }

    /// An empty text is not an expression.
    fn optional(&mut self, path: &str, source: &str, variables: &[&str]) -> Option<Program> {
        if source.is_empty() {
            None
        } else {
            self.expression(path, source, variables)
        }
    }

    /// A path that may be written.
    fn path(&mut self, at: &str, text: &str, with_status: bool) -> Option<Path> {
        let path = Path::parse(text).and_then(|path| spec::writable(&path, with_status).map(|()| path));
        path.map_err(|problem| self.problem(at, None, problem)).ok()
    }

    fn conversions(
        &mut self,
        at: &str,
        conversions: &[Conversion],
        variables: &[&str],
        with_status: bool,
    ) -> Vec<(Path, Program)> {
        let mut read = Vec::new();
        for (index, conversion) in conversions.iter().enumerate() {
            let path = self.path(&format!("{at}[{index}].path"), &conversion.path, with_status);
            let value = self.expression(&format!("{at}[{index}].value"), &conversion.value, variables);
            read.extend(path.zip(value));
        }
        read
    }

    fn mapping(
        &mut self,
        index: usize,
        declared: &Mapping,
        converter: Option<&Arc<dyn Convert>>,
    ) -> CompiledMapping {
        self.mapping = Some(declared.name.clone());
        let at = format!("mappings[{index}]");
        let metadata = &declared.metadata;
        if converter.is_some()
            && (!declared.convert.is_empty()
                || !declared.remove.is_empty()
                || *metadata != MappingMetadata::default())
        {
            let problem =
                "the program converts the objects of this mapping: expected no metadata, convert or remove";
            self.problem(&at, None, problem.to_owned());
        }
        let unpacks = !metadata.unpack.is_empty();
        let all: &[&str] = if unpacks {
            &["object", "unpacked"]
        } else {
            &["object"]
        };
        let with_status = declared.status == StatusCopy::Copy;
        let when = self.optional(&format!("{at}.from.when"), &declared.from.when, &["object"]);
        let ready = self.optional(&format!("{at}.from.ready"), &declared.from.ready, &["object"]);
        let name = self.optional(&format!("{at}.metadata.name"), &metadata.name, all);
        let namespace = self.optional(&format!("{at}.metadata.namespace"), &metadata.namespace, all);
        let mut annotations = Vec::new();
        for (key, source) in &metadata.annotations {
            let path = format!("{at}.metadata.annotations[\"{key}\"]");
            annotations.extend(
                self.expression(&path, source, all)
                    .map(|program| (key.clone(), program)),
            );
        }
        let convert = self.conversions(&format!("{at}.convert"), &declared.convert, all, with_status);
        let mut remove = Vec::new();
        for (number, text) in declared.remove.iter().enumerate() {
            let at = format!("{at}.remove[{number}]");
            let Some(path) = self.path(&at, text, with_status) else {
                continue;
            };
            if let Some((lost, _)) = convert.iter().find(|(converted, _)| path.contains(converted)) {
                let problem = format!(
                    "it would remove {}, which convert sets: expected other fields",
                    lost.keys().join(".")
                );
                self.problem(&at, None, problem);
            }
            remove.push(path);
        }
        CompiledMapping {
            index,
            declared: declared.clone(),
            when,
            ready,
            name,
            namespace,
            annotations,
            convert,
            remove,
            converter: converter.cloned(),
        }
    }

    fn rewrite(&mut self, index: usize, rule: &RewriteRule) -> CompiledRewrite {
        let at = format!("references.rewrite[{index}]");
        CompiledRewrite {
            index,
            group: rule.within.group.clone(),
            kind: rule.within.kind.clone(),
            selector: rule.within.selector.clone(),
            when: self.optional(&format!("{at}.when"), &rule.when, &["object"]),
            convert: self.conversions(&format!("{at}.convert"), &rule.convert, &["object"], false),
            rewrite_keys: rule.rewrite_keys.clone(),
        }
    }
}
