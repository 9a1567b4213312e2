//! Asks every API server who answers for the kinds: what it serves, and whether it shows their objects.

use std::collections::BTreeSet;
use std::time::Duration;

use exuvia_runtime::servers::Answer;
use exuvia_sweep::Pages;
use exuvia_write::{Name, Redacted, RetryPolicy, brief, redacted};
use futures::future::try_join_all;
use http::{Request, header::ACCEPT};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};

use super::answers::{Seen, Wanted};
use super::discovery::{AGGREGATED, Aggregated, Expected, Plain};
use super::{Alias, Answers, Error, Route, ServerAnswer, Verdict};

/// Longer than a server is given to answer at all.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Route {
    /// Who answers for these kinds, on each API server: the CRDs, or somebody else.
    ///
    /// `aliases` are what [`alias_uids`](Self::alias_uids) told before the switch; one of each kind is looked at. An object
    /// that still has that uid comes from the backend. Without them it is told by discovery alone: by the storage version
    /// hash, the names and the subresources that a CRD shows. A backend that shows just the same would be taken for CRDs.
    pub async fn answered_by_crds(&self, kinds: &[ApiResource], aliases: &[Alias]) -> Result<Answers, Error> {
        self.check(kinds)?;
        let wanted = self.wanted(kinds).await?;
        let samples: Vec<(&ApiResource, &Alias)> = kinds
            .iter()
            .filter_map(|kind| Some((kind, aliases.iter().find(|alias| alias.kind == kind.kind)?)))
            .collect();
        let asked = self
            .servers
            .ask_at_least_one(&self.client, |server| self.look(server, kinds, &samples))
            .await
            .map_err(Error::reading("the list of API servers"))?;
        let judge = |answer: Answer<Seen>| ServerAnswer {
            verdict: match &answer.said {
                Ok(seen) => Verdict::of(&wanted, seen),
                Err(no_answer) => Verdict::Unknown(Redacted::from_error(no_answer)),
            },
            server: answer.server,
        };
        Ok(Answers {
            servers: asked.answers.into_iter().map(judge).collect(),
            why_not_all: asked.why_not_all,
        })
    }

    /// What CRDs would show.
    async fn wanted(&self, kinds: &[ApiResource]) -> Result<Wanted, Error> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let mut expected = Vec::new();
        for kind in kinds {
            let name = format!("{}.{}", kind.plural, kind.group);
            let crd = RetryPolicy::default().read(|| api.get_opt(&name)).await;
            let crd = crd.map_err(Error::reading(&name))?;
            match crd.and_then(|crd| Expected::from_crd(&crd, &kind.version)) {
                Some(shown) => expected.push(shown),
                None => {
                    return Err(Error::NoCrd {
                        name,
                        version: kind.version.clone(),
                    });
                }
            }
        }
        let mut pages = Pages::of(&api).metadata();
        let mut crds = BTreeSet::new();
        while let Some(page) = pages.next().await? {
            let of_group = |name: String| {
                let (plural, group) = name.split_once('.')?;
                (group == self.group).then(|| plural.to_owned())
            };
            crds.extend(
                page.items
                    .iter()
                    .filter_map(|item| of_group(item.identity().name)),
            );
        }
        Ok(Wanted {
            kinds: expected,
            crds,
        })
    }

    /// What one server shows. A refusal is an answer; a server that does not answer is an error.
    async fn look(
        &self,
        server: Client,
        kinds: &[ApiResource],
        samples: &[(&ApiResource, &Alias)],
    ) -> Result<Seen, kube::Error> {
        let plain = async {
            let path = format!("/apis/{}/{}", self.group, self.version);
            let document = document(&server, &path, "application/json").await?;
            Ok(document.and_then(|document| Plain::parse(&document).map_err(|error| not_understood(&error))))
        };
        let aggregated = async {
            let document = document(&server, "/apis", AGGREGATED).await?;
            let parse = |document: Vec<u8>| Aggregated::parse(&document, &self.group, &self.version);
            Ok(document.and_then(|document| parse(document).map_err(|error| not_understood(&error))))
        };
        let unread = try_join_all(kinds.iter().map(|kind| unread(&server, kind)));
        let aliases = try_join_all(samples.iter().map(|(kind, alias)| shown(&server, kind, alias)));
        let (plain, aggregated, unread, aliases) = futures::try_join!(plain, aggregated, unread, aliases)?;
        Ok(Seen {
            plain,
            aggregated,
            unread,
            aliases: aliases.into_iter().flatten().collect(),
        })
    }
}

/// What the server said, if it answered.
fn said<T>(read: Result<T, kube::Error>) -> Result<Result<T, Redacted>, kube::Error> {
    match read {
        Ok(answer) => Ok(Ok(answer)),
        Err(error @ kube::Error::Api(_)) => Ok(Err(Redacted::from_server(&brief(&error)))),
        Err(error) => Err(error),
    }
}

async fn document(
    server: &Client,
    path: &str,
    accept: &str,
) -> Result<Result<Vec<u8>, Redacted>, kube::Error> {
    let request = Request::get(path).header(ACCEPT, accept).body(Vec::new());
    let request = request.map_err(kube::Error::HttpError)?;
    let read = exuvia_write::read(server, request, TIMEOUT).await;
    said(read.map(|body| body.to_vec()))
}

fn not_understood(error: &serde_json::Error) -> Redacted {
    redacted!(
        "its answer is not understood (line {}, column {})",
        error.line(),
        error.column()
    )
}

/// Why the kind cannot be listed, if it cannot.
async fn unread(server: &Client, kind: &ApiResource) -> Result<Option<Redacted>, kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(server.clone(), kind);
    let listed = said(api.list_metadata(&ListParams::default().limit(1)).await)?;
    let refused = |why| redacted!("does not list {}: {}", Name(&kind.plural), why);
    Ok(listed.err().map(refused))
}

/// The object, if the server shows it under the uid that the backend gave it.
async fn shown(server: &Client, kind: &ApiResource, alias: &Alias) -> Result<Option<String>, kube::Error> {
    let api: Api<DynamicObject> = match &alias.namespace {
        Some(namespace) => Api::namespaced_with(server.clone(), namespace, kind),
        None => Api::all_with(server.clone(), kind),
    };
    let found = said(api.get_metadata_opt(&alias.name).await)?;
    let uid = found.ok().flatten().and_then(|found| found.metadata.uid);
    Ok((uid.as_ref() == Some(&alias.uid)).then(|| {
        let namespace = alias.namespace.iter().map(|namespace| format!("{namespace}/"));
        let namespace: String = namespace.collect();
        format!("{} {namespace}{}", alias.kind, alias.name)
    }))
}
