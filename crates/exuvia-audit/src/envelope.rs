//! The little of Kubernetes' protobuf envelope (`runtime.Unknown`) that tells what an object is, read with bounds.

/// What built-in objects begin with.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// `apiVersion` and `kind` of the envelope after [`MAGIC`]; `None` if the bytes are not such an envelope.
///
/// Field 1 of the envelope is a message whose field 1 is `apiVersion` and whose field 2 is `kind`.
pub(super) fn type_meta(envelope: &[u8]) -> Option<(&str, &str)> {
    let mut meta: &[u8] = &[];
    for_each_field(envelope, |number, bytes| {
        if number == 1 {
            meta = bytes;
        }
    })?;
    let (mut api_version, mut kind): (&[u8], &[u8]) = (&[], &[]);
    for_each_field(meta, |number, bytes| match number {
        1 => api_version = bytes,
        2 => kind = bytes,
        _ => {}
    })?;
    Some((str::from_utf8(api_version).ok()?, str::from_utf8(kind).ok()?))
}

/// Calls `with` on each length-delimited field; `None` unless the message is whole. Of a field that stands twice the
/// last one counts, as protobuf has it.
fn for_each_field<'a>(mut message: &'a [u8], mut with: impl FnMut(u64, &'a [u8])) -> Option<()> {
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        match tag & 7 {
            0 => drop(varint(&mut message)?),
            1 => drop(take(&mut message, 8)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                with(tag >> 3, take(&mut message, length)?);
            }
            5 => drop(take(&mut message, 4)?),
            _ => return None,
        }
    }
    Some(())
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).expect("short");
        [&[number << 3 | 2, length], bytes].concat()
    }

    #[test]
    fn apiversion_and_kind_are_found_whatever_else_there_is() {
        let meta = [field(2, b"Deployment"), field(1, b"apps/v1")].concat();
        let envelope = [
            vec![5 << 3, 0x96, 0x01],
            field(1, &meta),
            field(2, b"raw"),
            field(4, b""),
        ]
        .concat();
        assert_eq!(type_meta(&envelope), Some(("apps/v1", "Deployment")));
        assert_eq!(type_meta(&field(2, b"raw")), Some(("", "")));
    }

    #[test]
    fn what_is_cut_short_is_not_an_envelope() {
        let envelope = [field(1, &field(1, b"v1")), field(2, b"raw")].concat();
        for end in [1, 2, 3, envelope.len() - 1] {
            assert_eq!(type_meta(&envelope[..end]), None, "{end}");
        }
        assert_eq!(type_meta(&[0xff; 20]), None, "a number without an end");
        assert_eq!(type_meta(&[1 << 3 | 3]), None, "groups are not used");
        let huge = [&[1 << 3 | 2][..], &[0xff; 9], &[1]].concat();
        assert_eq!(type_meta(&huge), None, "longer than there are bytes");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = type_meta(&bytes);
        }

        #[test]
        fn what_is_written_is_read(api_version in "[a-z0-9./]{0,40}", kind in "[A-Za-z]{0,40}", raw in "\\PC{0,20}") {
            let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
            let envelope = [field(1, &meta), field(2, raw.as_bytes())].concat();
            prop_assert_eq!(type_meta(&envelope), Some((api_version.as_str(), kind.as_str())));
        }
    }
}
