//! What can be said of a spec without reading its expressions and without a cluster.

use exuvia_api::{
    DatastoreMigrationSpec, Flag, KeyPrefix, LabelSelector, Mapping, MappingMetadata, RewriteRule, WaitFor,
    counted, parse_duration,
};

use super::error::InvalidSpec;
use super::path::Path;
use super::selector;

/// Whether a path may be written: identity belongs to `to` and to `metadata` of the mapping, everything else in the metadata to
/// the API server.
pub(super) fn writable(path: &Path, with_status: bool) -> Result<(), String> {
    let keys: Vec<&str> = path.keys().iter().map(String::as_str).collect();
    match keys.as_slice() {
        ["apiVersion" | "kind", ..] => Err(format!(
            "the path {} cannot be written: expected it in `to`",
            keys[0]
        )),
        ["metadata", "labels" | "annotations"] | ["metadata", "labels" | "annotations", _] => Ok(()),
        ["metadata", "labels" | "annotations", ..] => Err("a label or annotation has no fields".to_owned()),
        ["metadata", "name" | "namespace" | "finalizers", ..] => Err(format!(
            "the path metadata.{} cannot be written: expected it in `metadata`",
            keys[1]
        )),
        ["metadata", ..] => Err("of the metadata only labels and annotations can be written".to_owned()),
        ["status", ..] if !with_status => {
            Err("the status is not copied: expected `status: Copy`, or another path".to_owned())
        }
        _ => Ok(()),
    }
}

/// Everything that is wrong.
pub(super) fn check(spec: &DatastoreMigrationSpec) -> Vec<InvalidSpec> {
    let mut check = Check {
        problems: Vec::new(),
        mapping: None,
    };
    check.count("mappings", spec.mappings.len(), 1, 64);
    if let Some(concurrency) = spec.concurrency {
        check.require((1..=64).contains(&concurrency), "concurrency", "expected 1 to 64");
    }
    for (index, mapping) in spec.mappings.iter().enumerate() {
        check.mapping = Some(mapping.name.clone());
        check.mapping(index, mapping);
        check.among_others(index, mapping, &spec.mappings);
    }
    check.mapping = None;
    check.count("references.rewrite", spec.references.rewrite.len(), 0, 32);
    for (index, rule) in spec.references.rewrite.iter().enumerate() {
        check.rewrite(&format!("references.rewrite[{index}]"), rule, &spec.mappings);
    }
    check.freeze(spec);
    check.require(
        !spec.conflicts.compare.is_empty(),
        "conflicts.compare",
        "expected at least one of Content, Labels, Annotations",
    );
    check.duration("conflicts.pollInterval", &spec.conflicts.poll_interval, 1);
    check.cutover(spec);
    check.problems
}

/// What a mapping takes or makes.
fn is_source(mapping: &Mapping, group: &str, kind: &str) -> bool {
    mapping.from.group == group && mapping.from.kinds.iter().any(|other| other == kind)
}

/// The kind of the target for a kind of the source.
pub(super) fn target_kind<'a>(mapping: &'a Mapping, source: &'a str) -> &'a str {
    if mapping.to.kind.is_empty() {
        source
    } else {
        &mapping.to.kind
    }
}

fn is_dns_label(name: &str) -> bool {
    let inner = name
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    inner && (1..=63).contains(&name.len()) && !name.starts_with('-') && !name.ends_with('-')
}

struct Check {
    problems: Vec<InvalidSpec>,
    mapping: Option<String>,
}

impl Check {
    fn problem(&mut self, path: &str, problem: impl Into<String>) {
        self.problems
            .push(InvalidSpec::new(self.mapping.as_deref(), path, problem));
    }

    fn require(&mut self, holds: bool, path: &str, problem: &str) {
        if !holds {
            self.problem(path, problem);
        }
    }

    fn count(&mut self, path: &str, count: usize, least: usize, most: usize) {
        if !(least..=most).contains(&count) {
            self.problem(
                path,
                format!(
                    "it has {}: expected {least} to {most}",
                    counted(count as u64, "entry")
                ),
            );
        }
    }

    fn duration(&mut self, path: &str, text: &str, least_seconds: u64) {
        match parse_duration(text) {
            Ok(duration) if duration.as_secs() < least_seconds => {
                self.problem(
                    path,
                    format!("the duration {text} is too short: expected at least {least_seconds}s"),
                );
            }
            Ok(_) => {}
            Err(error) => self.problem(path, error.to_string()),
        }
    }

    fn selector(&mut self, path: &str, selector: &LabelSelector) {
        if let Some((index, problem)) = selector::problem(selector) {
            self.problem(&format!("{path}.matchExpressions[{index}]"), problem);
        }
    }

    fn rewrite_keys(&mut self, path: &str, prefixes: &[KeyPrefix]) {
        self.count(path, prefixes.len(), 0, 32);
        for (index, prefix) in prefixes.iter().enumerate() {
            let at = format!("{path}[{index}]");
            self.require(
                !prefix.from.is_empty(),
                &at,
                "the prefix is empty: expected one, such as example.com/",
            );
            self.require(
                prefix.from != prefix.to,
                &at,
                "the prefix becomes itself: expected another one",
            );
            if prefixes[..index]
                .iter()
                .any(|earlier| prefix.from.starts_with(&earlier.from))
            {
                self.problem(&at, "it is never used: an earlier prefix takes all of its keys");
            }
        }
    }

    fn mapping(&mut self, index: usize, mapping: &Mapping) {
        let at = format!("mappings[{index}]");
        if !is_dns_label(&mapping.name) {
            let problem = format!(
                "invalid name \"{}\": expected lower case letters, digits and dashes",
                mapping.name
            );
            self.problem(&format!("{at}.name"), problem);
        }
        let from = &mapping.from;
        self.require(
            !from.group.is_empty(),
            &format!("{at}.from.group"),
            "expected an API group",
        );
        self.require(
            !from.version.is_empty(),
            &format!("{at}.from.version"),
            "expected a served version",
        );
        self.require(
            !mapping.to.group.is_empty(),
            &format!("{at}.to.group"),
            "expected an API group",
        );
        self.require(
            !mapping.to.version.is_empty(),
            &format!("{at}.to.version"),
            "expected a served version",
        );
        self.count(&format!("{at}.from.kinds"), from.kinds.len(), 1, 32);
        for (number, kind) in from.kinds.iter().enumerate() {
            let at = format!("{at}.from.kinds[{number}]");
            self.require(!kind.is_empty(), &at, "expected a kind");
            if from.kinds[..number].contains(kind) {
                self.problem(&at, format!("the kind {kind} is listed twice"));
            }
        }
        if !mapping.to.kind.is_empty() && from.kinds.len() > 1 {
            let problem = "several kinds cannot become one: expected one kind in from.kinds, or no to.kind";
            self.problem(&format!("{at}.to.kind"), problem);
        }
        self.selector(&format!("{at}.from.selector"), &from.selector);
        self.require(
            (0..=1000).contains(&mapping.wave),
            &format!("{at}.wave"),
            "expected 0 to 1000",
        );
        self.metadata(&format!("{at}.metadata"), &mapping.metadata);
        self.count(&format!("{at}.convert"), mapping.convert.len(), 0, 64);
        self.count(&format!("{at}.remove"), mapping.remove.len(), 0, 64);
    }

    fn metadata(&mut self, at: &str, metadata: &MappingMetadata) {
        self.rewrite_keys(&format!("{at}.rewriteKeys"), &metadata.rewrite_keys);
        self.count(&format!("{at}.annotations"), metadata.annotations.len(), 0, 32);
        self.count(
            &format!("{at}.dropAnnotations"),
            metadata.drop_annotations.len(),
            0,
            64,
        );
        for key in metadata.annotations.keys() {
            let at = format!("{at}.annotations[\"{key}\"]");
            self.require(!key.is_empty(), &at, "expected the key of an annotation");
            self.require(
                !metadata.drop_annotations.contains(key),
                &at,
                "dropAnnotations names it too",
            );
        }
        let finalizers = &metadata.finalizers;
        self.count(&format!("{at}.finalizers.keep"), finalizers.keep.len(), 0, 32);
        self.count(&format!("{at}.finalizers.rename"), finalizers.rename.len(), 0, 32);
        for (from, to) in &finalizers.rename {
            let at = format!("{at}.finalizers.rename[\"{from}\"]");
            self.require(!to.is_empty(), &at, "expected the name of a finalizer");
            self.require(
                !finalizers.keep.contains(from),
                &at,
                "finalizers.keep names it too",
            );
        }
    }

    /// What depends on the other mappings.
    fn among_others(&mut self, index: usize, mapping: &Mapping, all: &[Mapping]) {
        let at = format!("mappings[{index}]");
        let earlier = &all[..index];
        if earlier.iter().any(|other| other.name == mapping.name) {
            self.problem(
                &format!("{at}.name"),
                format!("the name \"{}\" is used twice", mapping.name),
            );
        }
        let group = &mapping.from.group;
        for (number, kind) in mapping.from.kinds.iter().enumerate() {
            let at_kind = format!("{at}.from.kinds[{number}]");
            let target = target_kind(mapping, kind);
            if mapping.to.group == *group && target == kind {
                self.problem(
                    &format!("{at}.to"),
                    format!("{kind} would become itself: expected another group or kind"),
                );
            } else if let Some(other) = all
                .iter()
                .find(|other| is_source(other, &mapping.to.group, target))
            {
                let problem = format!(
                    "{target} of {} is also a source, of mapping \"{}\": expected two migrations, one after the other",
                    mapping.to.group, other.name
                );
                self.problem(&format!("{at}.to"), problem);
            }
            if mapping.extra
                && !all
                    .iter()
                    .any(|other| !other.extra && is_source(other, group, kind))
            {
                let problem = format!("nothing moves {kind}: expected a mapping for it without `extra`");
                self.problem(&at_kind, problem);
            }
            let mut same = earlier.iter().filter(|other| is_source(other, group, kind));
            if let Some(other) = same
                .clone()
                .find(|other| other.from.version != mapping.from.version)
            {
                let problem = format!(
                    "mapping \"{}\" reads {kind} at {}: expected the same version",
                    other.name, other.from.version
                );
                self.problem(&format!("{at}.from.version"), problem);
            }
            let takes_all = |other: &&Mapping| {
                !other.extra && other.from.selector.is_empty() && other.from.when.is_empty()
            };
            if !mapping.extra
                && let Some(other) = same.find(takes_all)
            {
                let problem = format!(
                    "it takes nothing: the earlier mapping \"{}\" takes every {kind}; expected the special one first",
                    other.name
                );
                self.problem(&at_kind, problem);
            }
        }
    }

    fn rewrite(&mut self, at: &str, rule: &RewriteRule, mappings: &[Mapping]) {
        self.require(
            !rule.within.version.is_empty(),
            &format!("{at}.in.version"),
            "expected a served version",
        );
        self.require(
            !rule.within.kind.is_empty(),
            &format!("{at}.in.kind"),
            "expected a kind",
        );
        self.selector(&format!("{at}.in.selector"), &rule.within.selector);
        self.rewrite_keys(&format!("{at}.rewriteKeys"), &rule.rewrite_keys);
        self.count(&format!("{at}.convert"), rule.convert.len(), 0, 64);
        if rule.convert.is_empty() && rule.rewrite_keys.is_empty() {
            self.problem(at, "it changes nothing: expected convert or rewriteKeys");
        }
        if mappings
            .iter()
            .any(|mapping| is_source(mapping, &rule.within.group, &rule.within.kind))
        {
            self.problem(
                &format!("{at}.in"),
                "its objects are moved: expected convert in their mapping",
            );
        }
    }

    fn freeze(&mut self, spec: &DatastoreMigrationSpec) {
        let freeze = &spec.freeze;
        if !freeze.admission && freeze.flags.is_empty() {
            self.problem(
                "freeze.admission",
                "nothing would stop writers: expected true, or at least one flag",
            );
        }
        if freeze.drain != "Auto" {
            self.duration("freeze.drain", &freeze.drain, 0);
        }
        self.duration("freeze.maxDuration", &freeze.max_duration, 0);
        self.count("freeze.flags", freeze.flags.len(), 0, 16);
        for (index, flag) in freeze.flags.iter().enumerate() {
            self.flag(&format!("freeze.flags[{index}]"), flag);
        }
    }

    fn flag(&mut self, at: &str, flag: &Flag) {
        self.require(
            !flag.version.is_empty(),
            &format!("{at}.version"),
            "expected a served version",
        );
        self.require(!flag.kind.is_empty(), &format!("{at}.kind"), "expected a kind");
        self.require(!flag.name.is_empty(), &format!("{at}.name"), "expected a name");
        self.require(
            flag.frozen != flag.thawed,
            at,
            "frozen and thawed are the same: expected two values",
        );
        if let Err(problem) = Path::parse(&flag.path).and_then(|path| writable(&path, false)) {
            self.problem(&format!("{at}.path"), problem);
        }
    }

    fn cutover(&mut self, spec: &DatastoreMigrationSpec) {
        let cutover = &spec.cutover;
        let service = &cutover.api_service;
        let group = service.split_once('.').map(|(_, group)| group);
        if !service.is_empty()
            && !spec
                .mappings
                .iter()
                .any(|mapping| group == Some(mapping.to.group.as_str()))
        {
            let problem = format!(
                "\"{service}\" is not for the group of a target: expected <version>.<group>, such as v1.example.com"
            );
            self.problem("cutover.apiService", problem);
        }
        self.count("cutover.waitFor", cutover.wait_for.len(), 0, 32);
        for (index, wait) in cutover.wait_for.iter().enumerate() {
            self.wait_for(&format!("cutover.waitFor[{index}]"), wait);
        }
    }

    fn wait_for(&mut self, at: &str, wait: &WaitFor) {
        self.require(
            !wait.version.is_empty(),
            &format!("{at}.version"),
            "expected a served version",
        );
        self.require(!wait.kind.is_empty(), &format!("{at}.kind"), "expected a kind");
        self.selector(&format!("{at}.selector"), &wait.selector);
        if !wait.name.is_empty() && !wait.selector.is_empty() {
            self.problem(at, "it has a name and a selector: expected one of them");
        }
        let rolls_out = ["Deployment", "StatefulSet", "DaemonSet"].contains(&wait.kind.as_str());
        if wait.rollout && !(wait.group == "apps" && rolls_out) {
            let problem = "a roll-out is known of Deployment, StatefulSet and DaemonSet of the group apps: expected one of them";
            self.problem(&format!("{at}.rollout"), problem);
        }
    }
}
