// SPDX-License-Identifier: GPL-2.0
/*
 * Pairing with the network interface whose MAC address the device names
 * (docs/virtio-rdma.md, section 2), in whatever slot and whenever it comes or
 * goes. Its addresses become GIDs by way of the RDMA core, its link state is
 * the port's.
 */
#include <linux/etherdevice.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <net/net_namespace.h>

#include "vrdma.h"

/*
 * VLANs, bridges and bonds on top of the interface carry its address too; it
 * alone has a parent device. A user may have given it another address.
 */
static bool vrdma_netdev_matches(const struct vrdma_dev *dev,
				 const struct net_device *netdev)
{
	return netdev->dev.parent && netdev->type == ARPHRD_ETHER &&
	       netdev->reg_state == NETREG_REGISTERED &&
	       (ether_addr_equal_unaligned(netdev->perm_addr, dev->mac) ||
		ether_addr_equal_unaligned(netdev->dev_addr, dev->mac));
}

static bool vrdma_netdev_active(const struct net_device *netdev)
{
	return netif_running(netdev) && netif_carrier_ok(netdev);
}

/* The paired interface with a reference to be put, or NULL. */
struct net_device *vrdma_netdev_get(struct vrdma_dev *dev)
{
	struct net_device *netdev;
	unsigned long flags;

	spin_lock_irqsave(&dev->netdev_lock, flags);
	netdev = dev->netdev;
	if (netdev)
		dev_hold(netdev);
	spin_unlock_irqrestore(&dev->netdev_lock, flags);
	return netdev;
}

/*
 * Tells the core when the port came up or went down. Under RTNL, so that the
 * last word is about the last change.
 */
static void vrdma_netdev_link(struct vrdma_dev *dev)
{
	bool active, changed;
	unsigned long flags;

	ASSERT_RTNL();
	spin_lock_irqsave(&dev->netdev_lock, flags);
	active = dev->netdev && vrdma_netdev_active(dev->netdev);
	changed = active != dev->port_active;
	dev->port_active = active;
	spin_unlock_irqrestore(&dev->netdev_lock, flags);
	if (changed)
		vrdma_port_event(dev, active ? IB_EVENT_PORT_ACTIVE :
					       IB_EVENT_PORT_ERR);
}

/*
 * The interface belongs to another device, so the directory "net" that tools
 * look for below that of an RDMA device is a group of ours, with a link to it.
 */
static struct attribute *vrdma_net_attrs[] = { NULL };
static const struct attribute_group vrdma_net_group = {
	.name = "net",
	.attrs = vrdma_net_attrs,
};

static void vrdma_netdev_unlink(struct vrdma_dev *dev)
{
	struct kobject *kobj = &dev->vdev->dev.kobj;

	if (!dev->netdev_link[0])
		return;
	sysfs_remove_link_from_group(kobj, vrdma_net_group.name,
				     dev->netdev_link);
	sysfs_remove_group(kobj, &vrdma_net_group);
	dev->netdev_link[0] = 0;
}

/* Also when its name changed. */
static void vrdma_netdev_relink(struct vrdma_dev *dev,
				struct net_device *netdev)
{
	struct kobject *kobj = &dev->vdev->dev.kobj;
	int err;

	vrdma_netdev_unlink(dev);
	err = sysfs_create_group(kobj, &vrdma_net_group);
	if (err)
		goto out;
	err = sysfs_add_link_to_group(kobj, vrdma_net_group.name,
				      &netdev->dev.kobj, netdev->name);
	if (err)
		sysfs_remove_group(kobj, &vrdma_net_group);
	else
		strscpy(dev->netdev_link, netdev->name,
			sizeof(dev->netdev_link));
out:
	if (err)
		dev_warn(&dev->vdev->dev, "no link to %s in sysfs: %d\n",
			 netdev->name, err);
}

static struct net_device *vrdma_netdev_find(struct vrdma_dev *dev)
{
	struct net_device *netdev, *found = NULL;
	struct net *net;

	down_read(&net_rwsem);
	for_each_net(net) {
		for_each_netdev(net, netdev) {
			if (vrdma_netdev_matches(dev, netdev)) {
				found = netdev;
				break;
			}
		}
		if (found)
			break;
	}
	up_read(&net_rwsem);
	return found;
}

/* Pairs if there is an interface to pair with. Returns whether it did now. */
static bool vrdma_netdev_try(struct vrdma_dev *dev)
{
	struct net_device *netdev;
	unsigned long flags;
	int err;

	ASSERT_RTNL();
	if (dev->netdev)
		return false;
	netdev = vrdma_netdev_find(dev);
	if (!netdev)
		return false;
	err = ib_device_set_netdev(&dev->ibdev, netdev, VRDMA_PORT);
	if (err) {
		dev_warn(&dev->vdev->dev, "cannot pair with %s: %d\n",
			 netdev->name, err);
		return false;
	}
	dev_hold(netdev);
	spin_lock_irqsave(&dev->netdev_lock, flags);
	dev->netdev = netdev;
	spin_unlock_irqrestore(&dev->netdev_lock, flags);
	vrdma_netdev_relink(dev, netdev);
	dev_info(&dev->vdev->dev, "paired with %s\n", netdev->name);
	return true;
}

static void vrdma_netdev_part(struct vrdma_dev *dev)
{
	struct net_device *netdev;
	unsigned long flags;

	spin_lock_irqsave(&dev->netdev_lock, flags);
	netdev = dev->netdev;
	dev->netdev = NULL;
	spin_unlock_irqrestore(&dev->netdev_lock, flags);
	if (!netdev)
		return;
	vrdma_netdev_unlink(dev);
	dev_put(netdev);
}

static void vrdma_netdev_work(struct work_struct *work)
{
	struct vrdma_dev *dev = container_of(work, struct vrdma_dev,
					     netdev_work);
	bool paired;

	rtnl_lock();
	paired = vrdma_netdev_try(dev);
	rtnl_unlock();
	if (!paired)
		return;
	/* The addresses that it already has; the core missed their events. */
	rdma_roce_rescan_device(&dev->ibdev);
	rtnl_lock();
	vrdma_netdev_link(dev);
	rtnl_unlock();
}

static int vrdma_netdev_event(struct notifier_block *nb, unsigned long event,
			      void *ptr)
{
	struct vrdma_dev *dev = container_of(nb, struct vrdma_dev, netdev_nb);
	struct net_device *netdev = netdev_notifier_info_to_dev(ptr);

	/* Under RTNL, as is every change of dev->netdev. */
	if (dev->netdev && dev->netdev != netdev)
		return NOTIFY_DONE;

	switch (event) {
	case NETDEV_UNREGISTER:
		if (dev->netdev != netdev)
			break;
		ib_device_set_netdev(&dev->ibdev, NULL, VRDMA_PORT);
		vrdma_netdev_part(dev);
		vrdma_netdev_link(dev);
		break;
	case NETDEV_CHANGENAME:
		if (dev->netdev == netdev)
			vrdma_netdev_relink(dev, netdev);
		break;
	case NETDEV_REGISTER:
	case NETDEV_CHANGEADDR:
	case NETDEV_UP:
		if (!dev->netdev && vrdma_netdev_matches(dev, netdev))
			schedule_work(&dev->netdev_work);
		fallthrough;
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		if (dev->netdev == netdev)
			vrdma_netdev_link(dev);
		break;
	default:
		break;
	}
	return NOTIFY_DONE;
}

void vrdma_netdev_init(struct vrdma_dev *dev)
{
	spin_lock_init(&dev->netdev_lock);
	INIT_WORK(&dev->netdev_work, vrdma_netdev_work);
}

/* Before registration, so that the core finds the interface at once. */
void vrdma_netdev_pair(struct vrdma_dev *dev)
{
	rtnl_lock();
	vrdma_netdev_try(dev);
	vrdma_netdev_link(dev);
	rtnl_unlock();
}

/* After registration. */
int vrdma_netdev_start(struct vrdma_dev *dev)
{
	int err;

	dev->netdev_nb.notifier_call = vrdma_netdev_event;
	/* Replays the registration and state of every interface. */
	err = register_netdevice_notifier(&dev->netdev_nb);
	if (err)
		return err;
	return 0;
}

/* Before the core forgets the device. */
void vrdma_netdev_stop(struct vrdma_dev *dev)
{
	/*
	 * This replays the departure of every interface to the notifier, ours
	 * included, and so parts with it.
	 */
	unregister_netdevice_notifier(&dev->netdev_nb);
	cancel_work_sync(&dev->netdev_work);
}

void vrdma_netdev_release(struct vrdma_dev *dev)
{
	vrdma_netdev_part(dev);
}
