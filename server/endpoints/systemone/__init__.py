"""`/v1/systemone`, TypeSafe's endpoint, over the same questions as `/v1/decisions`.

In reading order: `schema` (bodies), `questions` (as the endpoints' common questions), `replies`,
`reply_schema`, `route`.
"""
