//! Walks everything below the prefix, resource by resource and page by page, all of it at one revision.

use std::collections::{BTreeMap, BTreeSet};

use super::definition::{self, Definition};
use super::error::Fault;
use super::etcd::{Etcd, Failure, LARGEST_ANSWER, Range};
use super::page::PageSize;
use super::place::Place;
use super::report::{AuditReport, ResourceReport};
use super::tally::Tally;
use super::{AuditOptions, Error, Progress};

/// One attempt to read everything.
pub(super) struct Walk<'a> {
    etcd: &'a mut Etcd,
    options: &'a AuditOptions,
    progress: &'a mut (dyn FnMut(&Progress<'_>) + Send),
    /// Without a slash at its end.
    prefix: &'a str,
    revision: i64,
    objects: u64,
    pages: u64,
    total: u64,
}

type Definitions = BTreeMap<String, Definition>;
type Sink<'s> = &'s mut (dyn FnMut(&[u8], &[u8]) + Send);

impl<'a> Walk<'a> {
    pub(super) fn new(
        etcd: &'a mut Etcd,
        options: &'a AuditOptions,
        prefix: &'a str,
        progress: &'a mut (dyn FnMut(&Progress<'_>) + Send),
    ) -> Self {
        Self {
            etcd,
            options,
            progress,
            prefix,
            revision: 0,
            objects: 0,
            pages: 0,
            total: 0,
        }
    }

    /// The revision that all pages are read at; 0 before the first answer.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) async fn read(&mut self) -> Result<AuditReport, Failure> {
        self.fix_revision().await?;
        let (definitions, crds) = self.read_crds().await?;
        let mut resources = if self.options.resources.is_empty() {
            self.read_all(&definitions).await?
        } else {
            self.read_named(&definitions, &crds).await?
        };
        if self.options.resources.is_empty() && crds.objects > 0 {
            resources.push(crds);
        }
        resources.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(AuditReport {
            endpoint: self.etcd.endpoint().to_owned(),
            prefix: self.prefix.to_owned(),
            revision: self.revision,
            restarted: false,
            objects: resources.iter().map(|resource| resource.objects).sum(),
            pages: self.pages,
            resources,
        })
    }

    /// How many objects there are of one custom resource.
    pub(super) async fn count(&mut self, resource: &str) -> Result<u64, Failure> {
        self.fix_revision().await?;
        let mut objects = 0;
        for place in Place::named(resource) {
            let below = |path: &[u8]| [self.prefix.as_bytes(), b"/", path].concat();
            let range = Range {
                start: &below(&place.path),
                end: &below(&place.end()),
                limit: 1,
                revision: self.revision,
                keys_only: true,
            };
            objects += self.etcd.range(&range).await?.count();
        }
        Ok(objects)
    }

    /// The first answer tells the revision and how much there is, and whether there is anything.
    async fn fix_revision(&mut self) -> Result<(), Failure> {
        let (start, end) = (format!("{}/", self.prefix), format!("{}0", self.prefix)); // '0' comes after '/'
        let answer = self
            .etcd
            .range(&Range {
                start: start.as_bytes(),
                end: end.as_bytes(),
                limit: 1,
                revision: 0,
                keys_only: true,
            })
            .await?;
        (self.revision, self.total) = (answer.revision(), answer.count());
        if !answer.kvs.is_empty() {
            return Ok(());
        }
        let (prefix, found) = (self.prefix.to_owned(), self.first_segment().await?);
        Err(Error::NothingUnderPrefix { prefix, found }.into())
    }

    /// What the very first key begins with, as a hint at the right prefix.
    async fn first_segment(&mut self) -> Result<Option<String>, Failure> {
        let all = Range {
            start: &[0],
            end: &[0], // to etcd: without an end
            limit: 1,
            revision: self.revision,
            keys_only: true,
        };
        let answer = self.etcd.range(&all).await?;
        let key = answer.kvs.first().map(super::etcd::KeyValue::key).transpose();
        let key = key.map_err(|fault| self.etcd.error(fault))?;
        Ok(key.map(|key| {
            let end = key
                .iter()
                .skip(1)
                .position(|byte| *byte == b'/')
                .map_or(key.len(), |at| at + 1);
            String::from_utf8_lossy(&key[..end]).into_owned()
        }))
    }

    /// Reads the CRDs, which say what the rest should look like.
    async fn read_crds(&mut self) -> Result<(Definitions, ResourceReport), Failure> {
        let place = Place::crds();
        let mut definitions = Definitions::new();
        let mut tally = Tally::new(place.clone(), Definition::BuiltIn, self.options.offenders);
        self.read_place(&place, &mut |key, value| {
            let name = key.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            let definition = match definition::read(value) {
                Ok(crd) => Definition::Crd(crd),
                Err(cause) => Definition::Unreadable(cause),
            };
            definitions.insert(String::from_utf8_lossy(name).into_owned(), definition);
            tally.add(key, value);
        })
        .await?;
        Ok((definitions, tally.finish(self.prefix)))
    }

    /// Reads every resource but the CRDs, by leaping from the end of one to the first key of the next.
    async fn read_all(&mut self, definitions: &Definitions) -> Result<Vec<ResourceReport>, Failure> {
        let crds = Place::crds();
        let mut seen = BTreeSet::new();
        let mut resources = Vec::new();
        let mut from = Vec::new();
        while let Some(key) = self.first_key_from(&from).await? {
            let place = Place::of(&key);
            from = place.end();
            if place != crds {
                seen.insert(place.name.clone());
                resources.push(self.read_resource(place, definitions).await?);
            }
        }
        for name in definitions.keys().filter(|name| !seen.contains(*name)) {
            if let Some((plural, group)) = name.split_once('.') {
                let place = Place::below_group(group, plural);
                let definition = definition_of(&place, definitions);
                resources.push(Tally::new(place, definition, 0).finish(self.prefix));
            }
        }
        Ok(resources)
    }

    /// Reads the resources that were asked for.
    async fn read_named(
        &mut self,
        definitions: &Definitions,
        crds: &ResourceReport,
    ) -> Result<Vec<ResourceReport>, Failure> {
        let mut read = BTreeSet::new();
        let mut resources = Vec::new();
        for name in &self.options.resources {
            let mut places = Place::named(name);
            // A plural alone may be a custom resource's as well.
            let of_crds = definitions.keys().filter_map(|crd| crd.split_once('.'));
            let same_plural = of_crds.filter(|(plural, _)| plural == name);
            places.extend(same_plural.map(|(plural, group)| Place::below_group(group, plural)));
            let mut found = false;
            for place in places {
                if read.contains(&place) {
                    found = true;
                    continue;
                }
                let resource = if place == Place::crds() {
                    crds.clone()
                } else {
                    self.read_resource(place.clone(), definitions).await?
                };
                if resource.objects > 0 || definitions.contains_key(&resource.name) {
                    found = true;
                    read.insert(place);
                    resources.push(resource);
                }
            }
            if !found {
                let near = exuvia_usage::nearest(name, definitions.keys().map(String::as_str));
                return Err(Error::NoSuchResource {
                    name: name.clone(),
                    near: near.join(" or "),
                }
                .into());
            }
        }
        Ok(resources)
    }

    async fn read_resource(
        &mut self,
        place: Place,
        definitions: &Definitions,
    ) -> Result<ResourceReport, Failure> {
        let definition = definition_of(&place, definitions);
        let mut tally = Tally::new(place.clone(), definition, self.options.offenders);
        self.read_place(&place, &mut |key, value| tally.add(key, value))
            .await?;
        Ok(tally.finish(self.prefix))
    }

    /// The first key at or after `from`, both without the prefix and its slash.
    async fn first_key_from(&mut self, from: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let start = [self.prefix.as_bytes(), b"/", from].concat();
        let end = format!("{}0", self.prefix).into_bytes();
        if start >= end {
            return Ok(None);
        }
        let range = Range {
            start: &start,
            end: &end,
            limit: 1,
            revision: self.revision,
            keys_only: true,
        };
        let answer = self.etcd.range(&range).await?;
        let Some(first) = answer.kvs.first() else {
            return Ok(None);
        };
        let key = first.key();
        match key {
            Ok(key) if key >= start && key < end => Ok(Some(key[self.prefix.len() + 1..].to_vec())),
            Ok(_) => Err(self.etcd.error(out_of_range()).into()),
            Err(fault) => Err(self.etcd.error(fault).into()),
        }
    }

    /// Reads every object of a place, page by page; one page and one value are in memory at a time.
    async fn read_place(&mut self, place: &Place, sink: Sink<'_>) -> Result<(), Failure> {
        let below = |path: &[u8]| [self.prefix.as_bytes(), b"/", path].concat();
        let (mut start, end) = (below(&place.path), below(&place.end()));
        let mut size = PageSize::new(self.options.page_size);
        let mut value = Vec::new();
        loop {
            let range = Range {
                start: &start,
                end: &end,
                limit: size.get(),
                revision: self.revision,
                keys_only: false,
            };
            let answer = match self.etcd.range(&range).await {
                Err(Failure::TooLarge) if size.shrink() => continue,
                Err(Failure::TooLarge) => {
                    let key = String::from_utf8_lossy(&start).into_owned();
                    let limit = LARGEST_ANSWER;
                    return Err(Error::TooLarge { key, limit }.into());
                }
                answer => answer?,
            };
            let (objects, more) = (answer.kvs.len(), answer.more);
            let mut read = Ok(());
            for pair in &answer.kvs {
                read = pair.key().and_then(|key| {
                    if key < start || key >= end {
                        return Err(out_of_range());
                    }
                    pair.read_value(&mut value)?;
                    sink(&key, &value);
                    start = key;
                    start.push(0); // the next key there can be
                    Ok(())
                });
                if read.is_err() {
                    break;
                }
            }
            read.map_err(|fault| self.etcd.error(fault))?;
            size.learn(objects, self.etcd.answered_bytes());
            self.pages += u64::from(objects > 0);
            self.objects += objects as u64;
            (self.progress)(&Progress {
                resource: &place.name,
                objects: self.objects,
                total: self.total,
            });
            if !more {
                return Ok(());
            }
            if objects == 0 {
                return Err(self
                    .etcd
                    .error(Fault::Odd("more, but nothing of it".to_owned()))
                    .into());
            }
        }
    }
}

fn out_of_range() -> Fault {
    Fault::Odd("a key that was not asked for".to_owned())
}

fn definition_of(place: &Place, definitions: &Definitions) -> Definition {
    match (&place.group, definitions.get(&place.name)) {
        (None, _) => Definition::BuiltIn,
        (Some(_), Some(definition)) => definition.clone(),
        (Some(_), None) => Definition::Missing,
    }
}
