"""What an S3 store or its clients say of an outage becomes one sentence with a name."""

import pytest

from include.lake import outages

LAKE = "s3a://lake/dev"
NO_ANSWER, REFUSES = "does not answer", "refuses the credentials"


@pytest.mark.parametrize(
    ("message", "is_refused", "reason"),
    [
        (
            "Server returned non-2xx status code: 503 Service Unavailable: <Error><Code>SlowDown</Code>",
            False,
            "SlowDown",
        ),
        (
            "Kernel error -> \x1b[31m↳\x1b[0m non-2xx status code \x1b[31m↳\x1b[0m 500 Internal",
            False,
            "HTTP status 500",
        ),
        ("tcp connect error: Connection refused (os error 111)", False, "Connection refused"),
        ("HTTP error: error sending request Debug source: HttpError { kind: Timeout, TimedOut }", False, "TimedOut"),
        ("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7", False, "NetworkConnection"),
        ("status code: 403 Forbidden: <Error><Code>InvalidAccessKeyId</Code>", True, "InvalidAccessKeyId"),
        ("status code: 400 Bad Request: <Error><Code>ExpiredToken</Code>", True, "ExpiredToken"),
        (
            "Error performing HEAD in 1 ms - Server returned non-2xx status code: 400 Bad Request",
            True,
            "HTTP status 400",
        ),
        ("AWS Error ACCESS_DENIED during HeadObject operation: No response body.", True, "AccessDenied"),
        ("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation", True, "HTTP status 400"),
        ("Error performing PUT http://169.254.169.254/latest/api/token in 1 ms", True, "none were found"),
    ],
)
def test_the_words_of_each_library_tell_an_outage_from_a_refusal(own_settings, message, is_refused, reason):
    own_settings(SLUICE_LAKE=LAKE)
    outage = outages.of_text(f"{LAKE}/silver/a", message)
    assert outage.error == ("LAKE_ACCESS" if is_refused else "LAKE_UNREACHABLE")
    assert str(outage).startswith(f"the lake {LAKE} cannot be used, because the store at http://")
    assert f"{REFUSES if is_refused else NO_ANSWER} ({reason}" in str(outage)


@pytest.mark.parametrize(
    ("path", "place", "error"),
    [
        (LAKE, f"the lake {LAKE}", "LAKE_UNREACHABLE"),
        ("s3a://lake", f"the lake {LAKE}", "LAKE_UNREACHABLE"),
        (f"{LAKE}elopment/x", f"{LAKE}elopment/x", "SOURCE_UNREACHABLE"),
        ("s3a://landing/orders", "s3a://landing/orders", "SOURCE_UNREACHABLE"),
    ],
)
def test_only_the_store_of_the_lake_is_called_the_lake(own_settings, path, place, error):
    own_settings(SLUICE_LAKE=LAKE)
    outage = outages.error_of(path, "SlowDown", is_refused=False)
    assert (outage.error, str(outage).partition(" cannot be used")[0]) == (error, place)
