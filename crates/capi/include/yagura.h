/*
 * Yagura for C and C++: the store, replicated, which needs no server of its own, and namespaces and volumes as block devices.
 *
 * Threads. Every function may be called from any thread, on any object, at any time, but for these: an object is freed
 * (yagura_close, yagura_options_free, yagura_value_free, yagura_scan_free, yagura_device_close, yagura_queue_free) once, when
 * nobody uses it any more, and one yagura_options, one yagura_scan and one yagura_queue is used by one thread at a time.
 *
 * Errors. A function that can fail returns a yagura_status, and yagura_error_message() has the sentence. What it was to fill
 * in is filled in only with YAGURA_OK, unless it says otherwise.
 *
 * Unknown outcomes. YAGURA_UNKNOWN: a change was sent and no majority could say what became of it; it may have taken effect,
 * or may do so later, or never. A later read tells, once it has returned the change or something newer.
 *
 * Completions. A function with "_async" in its name returns at once; its completion is called exactly once, on a thread of the
 * client, unless the function itself returned an error. A completion must not block, nor wait for a lock that is held while
 * requests are made; it may start further requests, and blocking functions refuse to work in it (YAGURA_USAGE). It must not
 * throw. Where the client's queue is full, such a function waits for room, which completions make, except in a completion.
 *
 * Fork. A child of fork() has none of the client's threads: there every function on the parent's client fails (YAGURA_USAGE),
 * but for yagura_close, which frees it and leaves the parent's alone. The child may open clients of its own. It inherits the
 * parent's sockets until it calls exec, so that a target may see the parent's end only when the child ends too.
 *
 * Stability. Within a major version of the interface (the number behind "libyagura.so.") functions, types, numbers and options
 * stay, and programs need not be compiled again; functions, statuses and options may be added. Treat a status that you do not
 * know as a failure. While the number is 0, the first one, it changes with any release that breaks this.
 *
 * Linking: pkg-config --cflags --libs yagura
 */
#ifndef YAGURA_H
#define YAGURA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Limits. */
#define YAGURA_KEY_MAX 512
#define YAGURA_VALUE_MAX 67108864
/* Room for a version as text, its ending zero included. */
#define YAGURA_VERSION_MAX 256

/* What a function says. As the exit status of the command "yagura", as far as that goes. */
typedef enum yagura_status {
    YAGURA_OK = 0,
    /* The key is not there; a scan is at its end. */
    YAGURA_ABSENT = 1,
    /* An argument, an address or a key file is wrong, or a key or value is too long. */
    YAGURA_USAGE = 2,
    /* Nothing answers, or no majority does. Nothing was changed. */
    YAGURA_UNAVAILABLE = 3,
    /* What answers is damaged, foreign, in use or of another version. */
    YAGURA_REFUSED = 4,
    /* The members that hold the key are full. Nothing was changed. */
    YAGURA_OUT_OF_SPACE = 5,
    /* The client's own time limit has passed. Nothing was changed. */
    YAGURA_TIMED_OUT = 6,
    /* The client was closed. Nothing was changed. */
    YAGURA_CLOSED = 7,
    /* The change may or may not have taken effect, and may yet. */
    YAGURA_UNKNOWN = 8,
    /* The condition did not hold; nothing was changed. */
    YAGURA_CHANGED = 9,
    /* The value is no number, or the sum is out of range; nothing was changed. */
    YAGURA_NOT_A_NUMBER = 10,
    /* A defect of this library. The client can't be relied on any more. */
    YAGURA_DEFECT = 70
} yagura_status;

/* A pool, reached. */
typedef struct yagura_client yagura_client;
/* How a client works. */
typedef struct yagura_options yagura_options;
/* A value that was read. */
typedef struct yagura_value yagura_value;
/* A walk over keys. */
typedef struct yagura_scan yagura_scan;
/* A block device: a namespace of a target, or a volume. */
typedef struct yagura_device yagura_device;
/* Requests to a block device that one thread has under way. */
typedef struct yagura_queue yagura_queue;

/* Bytes of the caller's. */
typedef struct yagura_bytes {
    const void *data;
    size_t length;
} yagura_bytes;

/* What a put says of a value beside its bytes. A null pointer in its place: it never ends, and has the tag 0. */
typedef struct yagura_put_options {
    /* When the key ends by itself, in Unix milliseconds; 0: never. */
    uint64_t expiry;
    /* What the value is, for whoever stores it; 0: plain bytes. */
    uint32_t tag;
} yagura_put_options;

/* Called when a request is done. The value is the completion's to free, and null where there is none. */
typedef void (*yagura_completion)(void *context, yagura_status status, yagura_value *value);

/* What an update makes of a key: it stays as it is, gets a value, or goes. */
typedef enum yagura_decision {
    YAGURA_KEEP = 0,
    YAGURA_PUT = 1,
    YAGURA_DELETE = 2
} yagura_decision;

/* Decides for yagura_update. */
typedef yagura_decision (*yagura_decide)(void *context, const yagura_value *found, yagura_bytes *value, yagura_put_options *options);

/* Version of this library, such as "0.1.0". */
const char *yagura_version(void);
/* The last error of the calling thread in words, "" if there was none; good until its next call. In a completion: its error. */
const char *yagura_error_message(void);

/* Options; null: no memory. */
yagura_options *yagura_options_new(void);
/*
 * Sets an option: "reactors" (threads; 1), "queue" (requests under way on one thread), "timeout-ms" (0: the store's own limit,
 * 10 s), "repair" (yes: bring members up to date that have missed writes), "pool-id" (the pool that is meant, a
 * UUID, if members of several are at the addresses), "host-nqn", "dhchap-key-file", "dhchap-ctrl-key-file", "concat" (yes),
 * "tls-key-file", "tls-identity" (0 or 1), "tls-legacy" (yes).
 */
yagura_status yagura_options_set(yagura_options *options, const char *name, const char *value);
void yagura_options_free(yagura_options *options);

/*
 * Reaches the pool that the members at "addresses" belong to: "host:port", several with commas between; one that answers is
 * enough. "options" may be null, and may be freed afterwards.
 */
yagura_status yagura_open(const char *addresses, const yagura_options *options, yagura_client **client);
/*
 * Ends what is under way, waits up to 10 s for slow members, and frees the client. Requests that have not begun complete with
 * YAGURA_CLOSED; when it returns, every completion has been called. Null is allowed. Not to be called in a completion (it would
 * wait for itself: then it returns YAGURA_USAGE and frees nothing).
 */
yagura_status yagura_close(yagura_client *client);

/* A value's parts. What they point to is good until the value is freed. */
const void *yagura_value_data(const yagura_value *value);
size_t yagura_value_length(const yagura_value *value);
/* When it ends, in Unix milliseconds; 0: never. */
uint64_t yagura_value_expiry(const yagura_value *value);
uint32_t yagura_value_tag(const yagura_value *value);
/* Which change of the key it came by, as text for yagura_compare_and_set. */
const char *yagura_value_version(const yagura_value *value);
/* Null is allowed. */
void yagura_value_free(yagura_value *value);

/* The value of a key. YAGURA_ABSENT: there is none. */
yagura_status yagura_get(yagura_client *client, yagura_bytes key, yagura_value **value);
/* Sets a key, whatever was there. */
yagura_status yagura_put(yagura_client *client, yagura_bytes key, yagura_bytes value, const yagura_put_options *options);
/* Removes a key. YAGURA_ABSENT: it was not there. Of two deletes at once both may have seen it; yagura_take is exact. */
yagura_status yagura_delete(yagura_client *client, yagura_bytes key);

/* Sets a key that is not there. YAGURA_CHANGED: it is. */
yagura_status yagura_add(yagura_client *client, yagura_bytes key, yagura_bytes value, const yagura_put_options *options);
/* Sets a key that is there. YAGURA_ABSENT: it is not. */
yagura_status yagura_replace(yagura_client *client, yagura_bytes key, yagura_bytes value, const yagura_put_options *options);
/*
 * Sets a key if its version is still "version". YAGURA_CHANGED: it is another, YAGURA_ABSENT: the key is gone. "stored", of
 * YAGURA_VERSION_MAX bytes, gets the new version; it may be null.
 */
yagura_status yagura_compare_and_set(yagura_client *client, yagura_bytes key, const char *version, yagura_bytes value, const yagura_put_options *options, char *stored);
/* Removes a key if its version is still "version". YAGURA_CHANGED: it is another, or the key is gone. */
yagura_status yagura_compare_and_delete(yagura_client *client, yagura_bytes key, const char *version);
/*
 * Changes a key as "decide" says of what is there (null: nothing); nothing comes between what it was shown and its change. It is
 * called on the caller's own thread, again whenever something did come between, and may block. For YAGURA_PUT it fills in
 * "value", which must stay good until it is called again or yagura_update has returned, and, if it wants, "options". "found" is
 * not its to free.
 */
yagura_status yagura_update(yagura_client *client, yagura_bytes key, yagura_decide decide, void *context);
/*
 * Adds to a key that holds a decimal number. "initial": what it has before if it is not there; null: then YAGURA_ABSENT.
 * YAGURA_NOT_A_NUMBER: it holds something else, or the sum is out of range.
 */
yagura_status yagura_increment(yagura_client *client, yagura_bytes key, int64_t delta, const int64_t *initial, int64_t *sum);
/* Appends to a key, or sets one that is not there. "length" gets the whole length; it may be null. */
yagura_status yagura_append(yagura_client *client, yagura_bytes key, yagura_bytes more, size_t *length);
/* Removes a key and returns what it had: of two at once only one has it. YAGURA_ABSENT: it was not there. */
yagura_status yagura_take(yagura_client *client, yagura_bytes key, yagura_value **value);

/*
 * Several at once, pipelined; each key is for itself. Always fills in all "count" places of "statuses", and of "values" (null
 * unless YAGURA_OK). Returns YAGURA_OK, or the first status that is neither that nor YAGURA_ABSENT.
 */
yagura_status yagura_get_many(yagura_client *client, size_t count, const yagura_bytes *keys, yagura_value **values, yagura_status *statuses);
yagura_status yagura_put_many(yagura_client *client, size_t count, const yagura_bytes *keys, const yagura_bytes *values, yagura_status *statuses);

/* Walks over the keys that begin with "prefix", in the pool's own order. No snapshot. Free it before the client. */
yagura_status yagura_scan_open(yagura_client *client, yagura_bytes prefix, yagura_scan **scan);
/* The next key, good until the next call; YAGURA_ABSENT: that was all. After an error it may be called again. */
yagura_status yagura_scan_next(yagura_scan *scan, yagura_bytes *key, size_t *value_length);
/* Null is allowed. */
void yagura_scan_free(yagura_scan *scan);

/* As the functions of these names. Arguments are copied: they may go when the function has returned. */
yagura_status yagura_get_async(yagura_client *client, yagura_bytes key, yagura_completion done, void *context);
yagura_status yagura_put_async(yagura_client *client, yagura_bytes key, yagura_bytes value, const yagura_put_options *options, yagura_completion done, void *context);
yagura_status yagura_delete_async(yagura_client *client, yagura_bytes key, yagura_completion done, void *context);
yagura_status yagura_add_async(yagura_client *client, yagura_bytes key, yagura_bytes value, const yagura_put_options *options, yagura_completion done, void *context);
yagura_status yagura_take_async(yagura_client *client, yagura_bytes key, yagura_completion done, void *context);

/* That a request of a queue has ended. */
typedef struct yagura_event {
    /* As the request was given it. */
    void *context;
    /* YAGURA_UNKNOWN: a write or a discard that may have taken effect, or may yet. */
    yagura_status status;
} yagura_event;

/*
 * Opens a block device: "namespace HOLDER" or "volume HOLDER HOLDER HOLDER", the holders of a volume in the order in which it was
 * made of them, where a holder is "HOST:PORT[,nqn=NQN][,nsid=N]". Without "nqn" the only subsystem that the target there tells of
 * is meant (then it has to answer), without "nsid" namespace 1. Of the options those of the host's name and keys count; null is
 * allowed. A volume is taken from whoever has it, and is the device's until that is closed: one that is opened twice, also in one
 * process, is taken from the former device, whose requests fail (YAGURA_REFUSED). The device has a thread of its own; a volume is
 * driven by one thread, a namespace that is opened several times by several.
 */
yagura_status yagura_device_open(const char *name, const yagura_options *options, yagura_device **device);
/*
 * Lets go of a volume, and frees the device, also where it returns an error (YAGURA_REFUSED: another host has the volume). What is
 * under way on its queues ends or is given up; they say so, and are freed apart, before or after. Null is allowed.
 */
yagura_status yagura_device_close(yagura_device *device);
/* Its size in bytes; of a block, of which offsets and lengths are multiples; and the most bytes of one read or write. */
uint64_t yagura_device_size(const yagura_device *device);
uint32_t yagura_device_block_size(const yagura_device *device);
uint32_t yagura_device_transfer_max(const yagura_device *device);

/* A queue that holds "depth" requests, from when one is begun until its event is taken. */
yagura_status yagura_queue_new(const yagura_device *device, size_t depth, yagura_queue **queue);
/* What is under way goes on, and nobody hears of it. Null is allowed. */
void yagura_queue_free(yagura_queue *queue);
/* Begins to read. "data" has to stay until the event is taken, and is filled in when it is. */
yagura_status yagura_queue_read(yagura_queue *queue, uint64_t offset, void *data, size_t length, void *context);
/*
 * Begins to write. "data" may go when the function has returned. "stable", if not 0: ends when it would survive the loss of power;
 * with a volume that is always so.
 */
yagura_status yagura_queue_write(yagura_queue *queue, uint64_t offset, const void *data, size_t length, int stable, void *context);
/* Begins to make what has been written, by events that were taken, survive the loss of power. */
yagura_status yagura_queue_flush(yagura_queue *queue, void *context);
/* Begins to say that bytes are needed no more. */
yagura_status yagura_queue_discard(yagura_queue *queue, uint64_t offset, uint64_t length, void *context);
/*
 * Waits until "least" events are there (or as many as are under way) or "limit_ms" have passed (negative: as long as it takes), and
 * takes up to "most" of them, in any order; "count" gets their number. After an event that is no YAGURA_OK yagura_error_message()
 * has the sentence of the last. YAGURA_CLOSED: the device has ended, with all that was under way.
 */
yagura_status yagura_queue_wait(yagura_queue *queue, size_t least, size_t most, int64_t limit_ms, yagura_event *events, size_t *count);

#ifdef __cplusplus
}
#endif

#endif
