//! Whether the target CRDs answer, judged by what one server shows: a pure decision.

use std::collections::BTreeSet;

use exuvia_write::{Name, Redacted, redacted};

use super::discovery::{Aggregated, Expected, Plain, Shown};

/// Who answers on each API server that was asked.
#[derive(Clone, Debug)]
pub struct Answers {
    /// One for each server.
    pub servers: Vec<ServerAnswer>,
    /// Why there may be more servers, in a sentence; `None`: these are all of them.
    pub why_not_all: Option<String>,
}

/// Who answers on one API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAnswer {
    /// How it is called: host and port.
    pub server: String,
    /// Who answers.
    pub verdict: Verdict,
}

/// Who answers, and how that is known. The sentences are written after the name of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The CRDs: in GET, LIST, discovery and aggregated discovery.
    Crds,
    /// The CRDs, but aggregated discovery does not show them: kubectl and others that use it lose the kinds as soon as the
    /// old backend is gone (PITFALLS D3).
    StaleDiscovery(Redacted),
    /// Another server.
    Backend(Redacted),
    /// It cannot be told.
    Unknown(Redacted),
}

impl Answers {
    /// Every server that was asked answers from CRDs, and at least one was.
    pub fn all_by_crds(&self) -> bool {
        !self.servers.is_empty() && self.servers.iter().all(|server| server.verdict == Verdict::Crds)
    }

    /// Every server that was asked answers from a backend, and at least one was.
    pub fn all_by_backend(&self) -> bool {
        let by_backend = |server: &ServerAnswer| matches!(server.verdict, Verdict::Backend(_));
        !self.servers.is_empty() && self.servers.iter().all(by_backend)
    }

    /// Objects come from CRDs everywhere, but some server's aggregated discovery is old: deleting the automanaged one again
    /// cures that. While a server still answers from the backend, it would be too early.
    pub fn is_discovery_stale(&self) -> bool {
        let stale = |server: &ServerAnswer| matches!(server.verdict, Verdict::StaleDiscovery(_));
        let by_crds = |server: &ServerAnswer| stale(server) || server.verdict == Verdict::Crds;
        self.servers.iter().any(stale) && self.servers.iter().all(by_crds)
    }

    /// Those that do not answer from CRDs in every way yet, each in a sentence.
    pub fn not_yet(&self) -> Vec<Redacted> {
        let sentence = |server: &ServerAnswer| match &server.verdict {
            Verdict::Crds => None,
            Verdict::StaleDiscovery(why) | Verdict::Backend(why) | Verdict::Unknown(why) => {
                Some(redacted!("{} {}", Name(&server.server), why))
            }
        };
        self.servers.iter().filter_map(sentence).collect()
    }
}

/// What is known before servers are asked.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) kinds: Vec<Expected>,
    /// The plurals of all CRDs of the group.
    pub(super) crds: BTreeSet<String>,
}

/// What one server shows. An error of the server is an answer, too: it is kept as a sentence.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) plain: Result<Plain, Redacted>,
    pub(super) aggregated: Result<Aggregated, Redacted>,
    /// For each kind why it cannot be read, in the order of the kinds; `None`: it can.
    pub(super) unread: Vec<Option<Redacted>>,
    /// Objects that have the uid under which only the backend knows them.
    pub(super) aliases: Vec<String>,
}

impl Verdict {
    /// Judges what one server shows. All questions about a group-version take the same way in a server, discovery as well as
    /// objects, so that one sign of the backend speaks for all of them; that CRDs answer is believed only if every sign
    /// agrees.
    pub(super) fn of(wanted: &Wanted, seen: &Seen) -> Self {
        if let Some(object) = seen.aliases.first() {
            return Self::Backend(redacted!(
                "shows {} under the uid that the backend gave it",
                Name(object)
            ));
        }
        let plain = match &seen.plain {
            Ok(plain) => plain,
            Err(why) => return Self::Unknown(redacted!("does not tell what it serves: {}", why)),
        };
        if let Some(foreign) = plain
            .resources
            .keys()
            .find(|plural| !wanted.crds.contains(*plural))
        {
            return Self::Backend(redacted!("serves {}, which has no CRD", Name(foreign)));
        }
        for expected in &wanted.kinds {
            let plural = expected.plural.as_str();
            let Some(shown) = plain.resources.get(plural) else {
                return Self::Unknown(redacted!("does not serve {} yet", Name(plural)));
            };
            if plain.hashes.get(plural) != Some(&expected.hash) {
                return Self::Backend(redacted!(
                    "serves {} with another storage version hash than its CRD",
                    Name(plural)
                ));
            }
            let shown = Shown {
                verbs: Vec::new(),
                ..shown.clone()
            };
            if shown != expected.shown {
                return Self::Backend(redacted!("serves {} otherwise than its CRD", Name(plural)));
            }
        }
        if let Some(why) = seen.unread.iter().flatten().next() {
            return Self::Unknown(why.clone());
        }
        match &seen.aggregated {
            Err(why) => Self::Unknown(redacted!("does not give its aggregated discovery: {}", why)),
            Ok(Aggregated::Unsupported) => Self::Crds,
            Ok(Aggregated::Absent) => {
                Self::StaleDiscovery("answers from CRDs, which its aggregated discovery lacks".into())
            }
            Ok(Aggregated::Listed {
                is_current,
                resources,
            }) if *is_current && *resources == plain.resources => Self::Crds,
            Ok(Aggregated::Listed { .. }) => Self::StaleDiscovery(
                "answers from CRDs, but its aggregated discovery shows something else".into(),
            ),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wanted() -> Wanted {
        let crd = serde_json::from_value(json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
                "versions": [
                    {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}},
                    {"name": "v0", "served": false, "storage": false},
                ],
            },
        }))
        .unwrap();
        assert_eq!(Expected::from_crd(&crd, "v0"), None, "it is not served");
        Wanted {
            kinds: vec![Expected::from_crd(&crd, "v1").unwrap()],
            crds: ["widgets", "gadgets"].map(str::to_owned).into(),
        }
    }

    fn plain() -> Value {
        json!({"kind": "APIResourceList", "resources": [
            {"name": "widgets", "singularName": "widget", "namespaced": true, "kind": "Widget",
                "verbs": ["delete", "get", "create"], "shortNames": ["wd"], "storageVersionHash": "UAAeFtpfYZA="},
            {"name": "widgets/status", "singularName": "", "namespaced": true, "kind": "Widget", "verbs": ["get"]},
        ]})
    }

    fn aggregated() -> Value {
        json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": "example.com"}, "versions": [
            {"version": "v1", "freshness": "Current", "resources": [{
                "resource": "widgets", "responseKind": {"kind": "Widget"}, "scope": "Namespaced",
                "singularResource": "widget", "verbs": ["delete", "get", "create"], "shortNames": ["wd"],
                "subresources": [{"subresource": "status"}],
            }]},
        ]}]})
    }

    fn seen(plain: &Value, aggregated: &Value) -> Seen {
        Seen {
            plain: Ok(Plain::parse(plain.to_string().as_bytes()).unwrap()),
            aggregated: Ok(
                Aggregated::parse(aggregated.to_string().as_bytes(), "example.com", "v1").unwrap(),
            ),
            unread: vec![None],
            aliases: Vec::new(),
        }
    }

    fn hash() -> String {
        wanted().kinds[0].hash.clone()
    }

    fn plain_of_crd() -> Value {
        let mut plain = plain();
        plain["resources"][0]["storageVersionHash"] = hash().into();
        plain
    }

    fn verdict(plain: &Value, aggregated: &Value) -> Verdict {
        Verdict::of(&wanted(), &seen(plain, aggregated))
    }

    #[test]
    fn crds_answer_when_every_sign_agrees() {
        assert_eq!(verdict(&plain_of_crd(), &aggregated()), Verdict::Crds);
        // A server that has no such document.
        let groups = json!({"kind": "APIGroupList", "groups": []});
        assert_eq!(verdict(&plain_of_crd(), &groups), Verdict::Crds);
    }

    #[test]
    fn any_sign_of_the_backend_is_believed() {
        let is_backend = |plain: &Value| matches!(verdict(plain, &aggregated()), Verdict::Backend(_));
        let mut other = plain_of_crd();
        other["resources"][0]["storageVersionHash"] = "AAAAAAAAAAA=".into();
        assert!(is_backend(&other), "another hash");
        other["resources"][0]["storageVersionHash"] = Value::Null;
        assert!(is_backend(&other), "no hash");
        let mut other = plain_of_crd();
        other["resources"][0]["shortNames"] = json!([]);
        assert!(is_backend(&other), "other names");
        let mut other = plain_of_crd();
        other["resources"][1]["name"] = "widgets/scale".into();
        assert!(is_backend(&other), "other subresources");
        let mut other = plain_of_crd();
        let more = json!({"name": "profiles", "kind": "Profile", "verbs": []});
        other["resources"].as_array_mut().unwrap().push(more);
        assert!(is_backend(&other), "a kind without a CRD");
        let mut known = seen(&plain_of_crd(), &aggregated());
        known.aliases = vec!["Widget default/a".to_owned()];
        let verdict = Verdict::of(&wanted(), &known);
        let why = "shows Widget default/a under the uid that the backend gave it";
        assert_eq!(verdict, Verdict::Backend(Redacted::ours(why)));
    }

    #[test]
    fn what_cannot_be_read_is_not_known() {
        let is_unknown = |seen: &Seen| matches!(Verdict::of(&wanted(), seen), Verdict::Unknown(_));
        let mut silent = seen(&plain_of_crd(), &aggregated());
        silent.plain = Err("service unavailable (http 503)".into());
        assert!(is_unknown(&silent));
        let mut silent = seen(&plain_of_crd(), &aggregated());
        silent.unread = vec![Some("storage is (re)initializing (http 429)".into())];
        assert!(is_unknown(&silent));
        let mut silent = seen(&plain_of_crd(), &aggregated());
        silent.aggregated = Err("no".into());
        assert!(is_unknown(&silent));
        let empty = seen(&json!({"resources": []}), &aggregated());
        assert!(is_unknown(&empty));
    }

    /// PITFALLS D3.
    #[test]
    fn discovery_of_the_old_backend_is_stale_however_current_it_claims_to_be() {
        let is_stale =
            |aggregated: &Value| matches!(verdict(&plain_of_crd(), aggregated), Verdict::StaleDiscovery(_));
        let pointer = "/items/0/versions/0";
        let mut old = aggregated();
        old.pointer_mut(pointer).unwrap()["resources"][0]["verbs"] = json!(["create", "delete", "get"]);
        assert!(
            is_stale(&old),
            "verbs in the order of a server that is not made of CRDs"
        );
        let mut old = aggregated();
        old.pointer_mut(pointer).unwrap()["freshness"] = "Stale".into();
        assert!(is_stale(&old));
        let mut old = aggregated();
        old.pointer_mut(pointer).unwrap()["resources"] = json!([]);
        assert!(is_stale(&old));
        let mut old = aggregated();
        old.pointer_mut(pointer).unwrap()["version"] = "v9".into();
        assert!(is_stale(&old));
    }

    #[test]
    fn nothing_is_deleted_again_while_some_server_still_answers_from_the_backend() {
        let answers = |verdicts: Vec<Verdict>| Answers {
            servers: (verdicts.into_iter().enumerate())
                .map(|(index, verdict)| ServerAnswer {
                    server: format!("server-{index}"),
                    verdict,
                })
                .collect(),
            why_not_all: None,
        };
        let stale = || Verdict::StaleDiscovery("is stale".into());
        let backend = || Verdict::Backend("has a backend".into());
        assert!(!answers(vec![]).all_by_crds(), "nobody was asked");
        assert!(!answers(vec![]).all_by_backend());
        assert!(answers(vec![Verdict::Crds, Verdict::Crds]).all_by_crds());
        assert!(!answers(vec![Verdict::Crds, Verdict::Crds]).is_discovery_stale());
        assert!(answers(vec![Verdict::Crds, stale()]).is_discovery_stale());
        assert!(!answers(vec![backend(), stale()]).is_discovery_stale());
        assert!(!answers(vec![Verdict::Unknown("x".into()), stale()]).is_discovery_stale());
        let not_yet = answers(vec![Verdict::Crds, backend()]).not_yet();
        assert_eq!(not_yet, ["server-1 has a backend"]);
    }
}
