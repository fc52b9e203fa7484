/*
 * An I/O engine for fio: namespaces and volumes as block devices, through libyagura.
 *
 * It is built by whoever uses it, against the tree of the fio that it is for (make fio-engine FIO=…): nothing of fio is here.
 * docs/programs.md says how, and what its options are.
 *
 * All jobs are threads of one process. Jobs that name one volume share it, as a volume has one user; each job on a namespace has
 * connections of its own.
 */
#include "fio.h"
#include "optgroup.h"

#include <yagura.h>

#if FIO_IOOPS_VERSION < 30
#error "this fio is older than 3.30"
#endif

struct yagura_engine_options {
    /* fio takes an option at offset 0 for none. */
    void *unused;
    char *device;
    char *settings;
};

static struct fio_option engine_options[] = {
    {
        .name = "device",
        .lname = "Device",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct yagura_engine_options, device),
        .help = "namespace HOST:PORT[,nqn=NQN][,nsid=N], or volume and its holders",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "settings",
        .lname = "Settings",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct yagura_engine_options, settings),
        .help = "options of yagura.h as NAME=VALUE, with blanks between: host-nqn, dhchap-key-file, tls-key-file, ...",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    { .name = NULL },
};

/* A device that is open, and how many jobs have it. */
struct opened {
    struct opened *next;
    char *name;
    yagura_device *device;
    unsigned int users;
};

/* What one job has. */
struct job {
    struct opened *opened;
    yagura_queue *queue;
    yagura_event *events;
};

static struct opened *all_opened;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static int apply(yagura_options *options, const char *settings)
{
    char *copy = strdup(settings), *rest = copy, *word;
    int failed = copy ? 0 : ENOMEM;

    while (!failed && (word = strtok_r(rest, " \t", &rest))) {
        char *value = strchr(word, '=');

        if (value)
            *value++ = 0;
        if (!value || yagura_options_set(options, word, value) != YAGURA_OK) {
            log_err("yagura: settings: %s\n", value ? yagura_error_message() : "write NAME=VALUE");
            failed = EINVAL;
        }
    }
    free(copy);
    return failed;
}

/* Opens the device, or finds the volume among those that are open; with the lock held. */
static int find_or_open(struct yagura_engine_options *wanted, struct opened **found)
{
    struct opened *opened = NULL;
    yagura_options *options = NULL;
    int failed;

    if (!strncmp(wanted->device, "volume", strlen("volume")))
        for (opened = all_opened; opened && strcmp(opened->name, wanted->device); opened = opened->next)
            ;
    if (opened) {
        opened->users++;
        *found = opened;
        return 0;
    }
    opened = calloc(1, sizeof(*opened));
    options = yagura_options_new();
    if (!opened || !options || !(opened->name = strdup(wanted->device))) {
        failed = ENOMEM;
        goto fail;
    }
    failed = wanted->settings ? apply(options, wanted->settings) : 0;
    if (failed)
        goto fail;
    if (yagura_device_open(opened->name, options, &opened->device) != YAGURA_OK) {
        log_err("yagura: %s\n", yagura_error_message());
        failed = EIO;
        goto fail;
    }
    yagura_options_free(options);
    opened->users = 1;
    opened->next = all_opened;
    all_opened = opened;
    *found = opened;
    return 0;
fail:
    yagura_options_free(options);
    if (opened)
        free(opened->name);
    free(opened);
    return failed;
}

static void let_go(struct opened *opened)
{
    struct opened **place;

    pthread_mutex_lock(&all_lock);
    if (--opened->users == 0) {
        for (place = &all_opened; *place != opened; place = &(*place)->next)
            ;
        *place = opened->next;
        if (yagura_device_close(opened->device) != YAGURA_OK)
            log_err("yagura: %s: %s\n", opened->name, yagura_error_message());
        free(opened->name);
        free(opened);
    }
    pthread_mutex_unlock(&all_lock);
}

/* Called for each job, before any of them begins. */
static int engine_setup(struct thread_data *td)
{
    struct yagura_engine_options *wanted = td->eo;
    unsigned long long most;
    struct job *job;
    int failed;

    if (!wanted->device || !*wanted->device) {
        log_err("yagura: no device: say --device=\"namespace HOST:PORT\", or volume and its holders\n");
        return EINVAL;
    }
    /* The library's threads are not there in a child of fork. */
    td->o.use_thread = 1;
    job = calloc(1, sizeof(*job));
    if (!job)
        return ENOMEM;
    pthread_mutex_lock(&all_lock);
    failed = find_or_open(wanted, &job->opened);
    pthread_mutex_unlock(&all_lock);
    if (failed) {
        free(job);
        return failed;
    }
    td->io_ops_data = job;
    most = yagura_device_transfer_max(job->opened->device);
    if (td->o.max_bs[DDIR_READ] > most || td->o.max_bs[DDIR_WRITE] > most) {
        log_err("yagura: a request of this device has at most %llu bytes: make bs smaller\n", most);
        return EINVAL;
    }
    if (!td->files_index) {
        add_file(td, "yagura", 0, 0);
        td->o.nr_files = 1;
        td->o.open_files++;
    }
    td->files[0]->real_file_size = yagura_device_size(job->opened->device);
    return 0;
}

/* Called on the job's own thread. */
static int engine_init(struct thread_data *td)
{
    struct job *job = td->io_ops_data;

    job->events = calloc(td->o.iodepth, sizeof(*job->events));
    if (!job->events)
        return ENOMEM;
    if (yagura_queue_new(job->opened->device, td->o.iodepth, &job->queue) == YAGURA_OK)
        return 0;
    log_err("yagura: %s\n", yagura_error_message());
    return EIO;
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
    struct job *job = td->io_ops_data;
    void *data = io_u->xfer_buf;
    unsigned long long offset = io_u->offset, length = io_u->xfer_buflen;
    yagura_status status;

    fio_ro_check(td, io_u);
    switch (io_u->ddir) {
    case DDIR_READ:
        status = yagura_queue_read(job->queue, offset, data, length, io_u);
        break;
    case DDIR_WRITE:
        status = yagura_queue_write(job->queue, offset, data, length, td->o.sync_io != 0, io_u);
        break;
    case DDIR_TRIM:
        status = yagura_queue_discard(job->queue, offset, length, io_u);
        break;
    case DDIR_SYNC:
    case DDIR_DATASYNC:
        status = yagura_queue_flush(job->queue, io_u);
        break;
    default:
        io_u->error = EINVAL;
        return FIO_Q_COMPLETED;
    }
    if (status == YAGURA_OK)
        return FIO_Q_QUEUED;
    log_err("yagura: %s\n", yagura_error_message());
    io_u->error = EIO;
    return FIO_Q_COMPLETED;
}

static int engine_getevents(struct thread_data *td, unsigned int least, unsigned int most, const struct timespec *limit)
{
    struct job *job = td->io_ops_data;
    int64_t limit_ms = limit ? (int64_t)limit->tv_sec * 1000 + limit->tv_nsec / 1000000 : -1;
    size_t count = 0, i;

    if (most > td->o.iodepth)
        most = td->o.iodepth;
    if (yagura_queue_wait(job->queue, least, most, limit_ms, job->events, &count) != YAGURA_OK) {
        log_err("yagura: %s\n", yagura_error_message());
        return -EIO;
    }
    for (i = 0; i < count; i++) {
        struct io_u *io_u = job->events[i].context;

        io_u->error = job->events[i].status == YAGURA_OK ? 0 : EIO;
        if (io_u->error)
            log_err("yagura: %s\n", yagura_error_message());
    }
    return (int)count;
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
    struct job *job = td->io_ops_data;

    return job->events[event].context;
}

static void engine_cleanup(struct thread_data *td)
{
    struct job *job = td->io_ops_data;

    if (!job)
        return;
    yagura_queue_free(job->queue);
    let_go(job->opened);
    free(job->events);
    free(job);
    td->io_ops_data = NULL;
}

/* There is no file: what is open is the device. */
static int engine_file(struct thread_data *td, struct fio_file *f)
{
    return 0;
}

/* fio looks for this name. */
struct ioengine_ops ioengine = {
    .name = "yagura",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL,
    .setup = engine_setup,
    .init = engine_init,
    .queue = engine_queue,
    .getevents = engine_getevents,
    .event = engine_event,
    .cleanup = engine_cleanup,
    .open_file = engine_file,
    .close_file = engine_file,
    .invalidate = engine_file,
    .options = engine_options,
    .option_struct_size = sizeof(struct yagura_engine_options),
};
